// What pointer and keys do on a map: hover, lasso, rectangle, pan and zoom, and the same by keyboard.

const NEAR = 14; // CSS pixels within which a pointer finds a point
const STEP = 10; // CSS pixels that an arrow key moves the corner of a line

class Scatter extends Plot {
  listen() {
    const at = (event) => {
      const box = this.over.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    this.over.addEventListener("pointerdown", (event) => this.press(event, at(event)));
    this.over.addEventListener("pointermove", (event) => this.moved(event, at(event)));
    this.over.addEventListener("pointerup", (event) => this.release(event));
    this.over.addEventListener("pointercancel", () => this.drop());
    this.over.addEventListener("pointerleave", () => { if (this.gesture === null || this.gesture.keys) this.leave(); });
    this.over.addEventListener("dblclick", (event) => this.zoomAt(2, at(event)));
    this.over.addEventListener("wheel", (event) => this.wheel(event, at(event)), { passive: false });
    this.over.addEventListener("keydown", (event) => this.key(event));
    this.over.addEventListener("blur", () => { this.drop(); this.leave(); });
  }

  press(event, point) {
    if (event.button !== 0) return;
    this.over.setPointerCapture(event.pointerId);
    this.gesture = { tool: this.look.tool, from: point, last: point, points: [point], how: howOf(event) };
    this.tip.hidden = true;
  }

  moved(event, point) {
    if (this.gesture === null || this.gesture.keys) {
      this.seek(point);
      return;
    }
    const { tool, from, last, points } = this.gesture;
    if (tool === "pan") {
      const k = this.scale;
      this.camera.move(this.camera.x - (point[0] - last[0]) / k, this.camera.y + (point[1] - last[1]) / k, this.camera.zoom);
    } else if (tool === "rectangle") {
      this.gesture.points = [from, [point[0], from[1]], point, [from[0], point[1]]];
    } else if (Math.hypot(point[0] - last[0], point[1] - last[1]) >= 2) points.push(point);
    else return;
    this.gesture.last = point;
    this.drawOver();
  }

  release(event) {
    const gesture = this.gesture;
    this.gesture = null;
    if (gesture === null) return;
    const far = Math.hypot(gesture.last[0] - gesture.from[0], gesture.last[1] - gesture.from[1]) > 3 || gesture.points.length > 4;
    if (gesture.tool !== "pan" && far) this.enclose(gesture);
    else if (!far) this.click(gesture, event);
    this.drawOver();
  }

  drop() {
    this.gesture = null;
    this.drawOver();
  }

  /** Select what a closed line surrounds. The test runs once, at the end, in map units. */
  enclose({ points, how, tool }) {
    const began = performance.now();
    const polygon = points.map(([x, y]) => this.toData(x, y));
    const xs = polygon.map(([x]) => x);
    const ys = polygon.map(([, y]) => y);
    const rows = [];
    this.grid.each(Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys), (row) => {
      if (this.model.drawn(row) && inside(polygon, this.xy[2 * row], this.xy[2 * row + 1])) rows.push(row);
    });
    this.model.select(rows, how, { tool, map: this.model.mapName, pane: this.index, polygon });
    this.root.dataset.lassoMs = (performance.now() - began).toFixed(1);
  }

  click(gesture, event) {
    const row = this.nearest(gesture.from);
    if (row >= 0) this.model.select([row], howOf(event) === "set" ? "set" : howOf(event));
    else if (gesture.how === "set") this.model.clear();
  }

  seek(point) {
    const row = this.nearest(point);
    this.model.setHover(row);
    if (row >= 0) this.showTip(row);
    else this.tip.hidden = true;
  }

  leave() {
    this.tip.hidden = true;
    this.model.setHover(-1);
  }

  nearest([px, py]) {
    const [left, low] = this.toData(px - NEAR, py + NEAR);
    const [right, high] = this.toData(px + NEAR, py - NEAR);
    const [x, y] = this.toData(px, py);
    let best = (NEAR / this.scale) ** 2;
    let found = -1;
    this.grid.each(left, right, low, high, (row) => {
      const far = (this.xy[2 * row] - x) ** 2 + (this.xy[2 * row + 1] - y) ** 2;
      if (far <= best && this.model.drawn(row)) [best, found] = [far, row];
    });
    return found;
  }

  showTip(row) {
    const { model } = this;
    const lines = [el("div", { class: "wb-tip-text" }, el("bdi", {}, brief(model.text(row)) || "(no text)"))];
    const facts = el("dl", {});
    const piece = model.piece(row);
    if (model.token !== null) facts.append(fact("token", piece === null ? `position ${model.token[row]}` : `${brief(piece, 60)} · position ${model.token[row]}`));
    for (const column of [this.look.column, ...model.columns.filter((c) => c !== this.look.column)].slice(0, 6)) {
      if (column !== null && column !== undefined && column.show(row) !== "") facts.append(fact(brief(column.name, 40), brief(column.show(row), 80)));
    }
    this.tip.replaceChildren(...lines, facts);
    this.tip.hidden = false;
    const [x, y] = this.toScreen(this.xy[2 * row], this.xy[2 * row + 1]);
    const { offsetWidth: w, offsetHeight: h } = this.tip;
    const px = x + 16 + w < this.width ? x + 16 : Math.max(4, x - 16 - w);
    this.tip.style.transform = `translate(${Math.round(Math.min(px, Math.max(4, this.width - w - 4)))}px, ${Math.round(Math.max(4, Math.min(y - h / 2, this.height - h - 4)))}px)`;
  }

  zoomAt(factor, [px, py]) {
    const [x, y] = this.toData(px, py);
    const [tx, ty] = this.target;
    const zoom = Math.min(400, Math.max(0.5, this.camera.zoom * factor));
    const keep = 1 - this.camera.zoom / zoom;
    this.camera.move(this.camera.x + (x - tx) * keep, this.camera.y + (y - ty) * keep, zoom);
  }

  wheel(event, point) {
    if (!event.ctrlKey && !event.metaKey && document.activeElement !== this.over) return; // the page scrolls
    event.preventDefault();
    this.zoomAt(Math.exp(-event.deltaY / 300), point);
  }

  key(event) {
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
    const { key } = event;
    if (this.gesture !== null && this.gesture.keys) this.keyLine(event, steps[key]);
    else if ((key === "r" || key === "l") && !event.ctrlKey && !event.metaKey && !event.altKey) this.beginLine(key === "r" ? "rectangle" : "lasso");
    else if (key in steps) this.step(steps[key]);
    else if (key === "Enter" || key === " ") {
      if (this.model.hover >= 0) this.model.select([this.model.hover], howOf(event));
    } else if (key === "Escape") this.model.clear();
    else if (key === "+" || key === "=") this.zoomAt(1.5, this.middle);
    else if (key === "-") this.zoomAt(1 / 1.5, this.middle);
    else if (key === "0") this.camera.move(0, 0, 1);
    else return;
    event.preventDefault();
  }

  say(words) {
    this.model.emit("say", words);
  }

  /** Start a line by keyboard, at the point that is marked or in the middle. */
  beginLine(tool) {
    const row = this.model.hover;
    const from = row >= 0 && Number.isFinite(this.xy[2 * row]) ? this.toScreen(this.xy[2 * row], this.xy[2 * row + 1]) : this.middle;
    this.tip.hidden = true;
    this.gesture = { tool, from, last: from, corners: [from], points: [from], keys: true };
    this.drawOver();
    this.say(tool === "lasso" ? "Lasso: arrow keys move, Space sets a corner, Enter closes, Escape ends." : "Rectangle: arrow keys move the far corner, Enter selects, Escape ends.");
  }

  /** Arrows move the free corner, with Control by one pixel; Space keeps it; Enter closes the line and selects. */
  keyLine(event, step) {
    const { gesture } = this;
    const { tool, from, corners } = gesture;
    if (step !== undefined) {
      const by = event.ctrlKey || event.metaKey ? 1 : STEP;
      gesture.last = [Math.min(this.width, Math.max(0, gesture.last[0] + by * step[0])), Math.min(this.height, Math.max(0, gesture.last[1] - by * step[1]))];
    } else if (event.key === " " && tool === "lasso") corners.push(gesture.last);
    else if (event.key === "Escape") this.gesture = null;
    else if (event.key === "Enter") {
      this.gesture = null;
      this.enclose({ ...gesture, how: howOf(event) });
    } else return;
    const { last } = gesture;
    gesture.points = tool === "rectangle" ? [from, [last[0], from[1]], last, [from[0], last[1]]] : [...corners, last];
    event.preventDefault();
    this.drawOver();
  }

  /** Go to the nearest point in a direction: sideways distance counts double. */
  step([dx, dy]) {
    const { xy, model } = this;
    const from = model.hover >= 0 ? [xy[2 * model.hover], xy[2 * model.hover + 1]] : null;
    const [cx, cy] = from === null || !Number.isFinite(from[0]) ? this.target : from;
    let best = Infinity;
    let found = -1;
    for (let i = 0; i < model.n; i += 1) {
      const x = xy[2 * i] - cx;
      const y = xy[2 * i + 1] - cy;
      const along = x * dx + y * dy;
      const cost = along + 2 * Math.abs(x * dy) + 2 * Math.abs(y * dx);
      const ahead = from === null ? true : along > 0;
      const price = from === null ? x * x + y * y : cost;
      if (ahead && i !== model.hover && price < best && model.drawn(i)) [best, found] = [price, i];
    }
    if (found < 0) return;
    model.setHover(found);
    this.showTip(found);
  }
}

function howOf(event) {
  return event.altKey ? "subtract" : event.shiftKey ? "add" : "set";
}

function fact(name, value) {
  return el("div", {}, el("dt", {}, el("bdi", {}, name)), el("dd", {}, el("bdi", {}, value)));
}
