// One map as it is drawn: points stamped on a canvas, a second canvas above it for what changes with the pointer.

const MAX_MOVES = 2_000; // arrows; more hide the map below them

/** What is drawn of a map; `Scatter` adds what pointer and keys do. */
class Plot {
  constructor(model, look, { title, badge, xlabel, ylabel, missing }, xy, camera, box) {
    Object.assign(this, { model, look, camera, title, badge, xlabel, ylabel, missing });
    this.base = el("canvas", { class: "wb-points", "aria-hidden": "true" });
    this.over = el("canvas", { class: "wb-over", tabindex: "0", role: "application", "aria-roledescription": "scatter map" });
    this.tip = el("div", { class: "wb-tip", hidden: true });
    this.heading = el("span", { class: "wb-pane-title" });
    this.mark = el("span", { class: "wb-badge" });
    this.note = el("p", { class: "wb-pane-note" });
    this.stage = el("div", { class: "wb-stage" }, this.base, this.over, this.tip);
    this.root = el("figure", { class: "wb-pane" }, el("figcaption", {}, this.heading, this.mark), this.stage, this.note);
    this.pending = false;
    this.draws = 0;
    this.gesture = null;
    this.moves = null;
    camera.maps.push(this);
    this.place(xy, box, { title, badge, xlabel, ylabel, missing });
    this.listen();
    for (const canvas of [this.base, this.over]) canvas.addEventListener("contextrestored", () => this.schedule());
    this.sight = new ResizeObserver(() => this.resize());
    this.sight.observe(this.stage);
  }

  /** Show other coordinates of the same rows. */
  place(xy, box, { title, badge, xlabel, ylabel, missing }) {
    Object.assign(this, { xy, box, xlabel, ylabel });
    this.grid = new Grid(xy, extent([xy]));
    this.heading.replaceChildren(say(title));
    this.mark.replaceChildren(badge || "");
    this.mark.hidden = !badge;
    this.mark.dataset.badge = badge || "";
    this.over.setAttribute("aria-label", `Map: ${reveal(title)}. Arrow keys go to the next point, Enter selects, Escape clears, R draws a rectangle, L a lasso, plus and minus zoom.`);
    let lost = 0;
    for (let i = 0; i < xy.length; i += 2) if (!Number.isFinite(xy[i] + xy[i + 1])) lost += 1;
    this.lost = lost;
    const notes = [];
    if (missing) notes.push(`${plural(missing, "row")} not in this run`);
    if (lost - (missing || 0) > 0) notes.push(`${plural(lost - (missing || 0), "row")} without coordinates: in the table only`);
    this.note.replaceChildren(notes.join(" · "));
    this.schedule();
  }

  resize() {
    const { clientWidth: width, clientHeight: height } = this.stage;
    const ratio = window.devicePixelRatio || 1;
    if (width === 0 || (this.width === width && this.height === height && this.ratio === ratio)) return;
    Object.assign(this, { width, height, ratio });
    for (const canvas of [this.base, this.over]) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    this.draw();
  }

  stop() {
    this.sight.disconnect();
    this.camera.maps = this.camera.maps.filter((map) => map !== this);
    for (const canvas of [this.base, this.over]) canvas.width = canvas.height = 0; // gives its memory back at once
    this.width = 0;
  }

  schedule() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      if (this.width) this.draw();
    });
  }

  // --- geometry: `margin` leaves room for the axis labels

  get scale() {
    const wide = (this.box.right - this.box.left) || 1;
    const tall = (this.box.high - this.box.low) || 1;
    const [left, bottom, rest] = this.margin;
    return this.camera.zoom * 0.94 * Math.min((this.width - left - rest) / wide, (this.height - bottom - rest) / tall);
  }

  get margin() {
    return [this.width < 420 ? 34 : 44, 34, 10];
  }

  get middle() {
    const [left, bottom, rest] = this.margin;
    return [(left + this.width - rest) / 2, (rest + this.height - bottom) / 2];
  }

  get target() {
    return [(this.box.left + this.box.right) / 2 + this.camera.x, (this.box.low + this.box.high) / 2 + this.camera.y];
  }

  toScreen(x, y) {
    const [mx, my] = this.middle;
    const [tx, ty] = this.target;
    return [mx + (x - tx) * this.scale, my - (y - ty) * this.scale];
  }

  toData(px, py) {
    const [mx, my] = this.middle;
    const [tx, ty] = this.target;
    return [tx + (px - mx) / this.scale, ty - (py - my) / this.scale];
  }

  radius() {
    const n = this.model.n;
    const size = n <= 300 ? 5 : n <= 2000 ? 3.8 : n <= 8000 ? 2.9 : n <= 20000 ? 2.3 : 1.7;
    return Math.round(10 * Math.min(7, size * Math.min(1.8, this.camera.zoom ** 0.25)) * (this.width < 420 ? 0.85 : 1)) / 10;
  }

  // --- drawing

  draw() {
    const began = performance.now();
    const pen = this.base.getContext("2d");
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    this.drawAxes(pen);
    pen.save();
    const [left, bottom, rest] = this.margin;
    pen.beginPath();
    pen.rect(left, rest, this.width - left - rest, this.height - bottom - rest);
    pen.clip();
    this.stamp(pen);
    pen.restore();
    this.drawOver();
    this.draws += 1;
    this.root.dataset.draws = this.draws;
    this.root.dataset.frame = JSON.stringify([...this.middle, ...this.target, this.scale]); // for whoever checks a place on screen
    this.root.dataset.drawMs = (performance.now() - began).toFixed(1);
  }

  /** The map as a PNG on its paper, for a view that is no longer live; drawn at a size of its own where it was never shown. */
  picture() {
    if (!this.width) {
      Object.assign(this, { width: 560, height: 420, ratio: 1 });
      for (const canvas of [this.base, this.over]) Object.assign(canvas, { width: 560, height: 420 });
    }
    this.draw();
    const sheet = el("canvas", { width: this.base.width, height: this.base.height });
    const pen = sheet.getContext("2d");
    pen.fillStyle = this.look.ink.paper;
    pen.fillRect(0, 0, sheet.width, sheet.height);
    pen.drawImage(this.base, 0, 0);
    return sheet.toDataURL("image/png");
  }

  drawAxes(pen) {
    const { ink } = this.look;
    const [left, bottom, rest] = this.margin;
    const [x0, y1] = this.toData(left, rest);
    const [x1, y0] = this.toData(this.width - rest, this.height - bottom);
    pen.font = `11px ${this.look.font}`;
    pen.lineWidth = 1;
    pen.strokeStyle = ink.grid;
    pen.fillStyle = ink.soft;
    pen.textAlign = "center";
    pen.textBaseline = "top";
    for (const x of ticks(x0, x1, this.width / 90)) {
      const px = Math.round(this.toScreen(x, 0)[0]) + 0.5;
      line(pen, px, rest, px, this.height - bottom);
      pen.fillText(figure(x), px, this.height - bottom + 5);
    }
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const y of ticks(y0, y1, this.height / 70)) {
      const py = Math.round(this.toScreen(0, y)[1]) + 0.5;
      line(pen, left, py, this.width - rest, py);
      pen.fillText(figure(y), left - 5, py);
    }
    pen.fillStyle = ink.text;
    pen.textAlign = "right";
    pen.textBaseline = "alphabetic";
    pen.fillText(this.xlabel, this.width - rest, this.height - 5);
    pen.save();
    pen.translate(10, rest);
    pen.rotate(-Math.PI / 2);
    pen.textBaseline = "middle";
    pen.fillText(this.ylabel, 0, 0);
    pen.restore();
  }

  /** All points: the dimmed ones first, so that what is selected or found lies on top. */
  stamp(pen) {
    const { model, xy } = this;
    const { codes, styles } = this.look.paint;
    const radius = this.radius();
    const { sizes: grown } = this.look;
    const stamps = (grown === null ? [1] : SIZES).map((by) => styles.map((style) => sprite(style, Math.round(10 * by * radius) / 10, this.ratio, this.look.ink.edge)));
    const sides = stamps.map(([first]) => first.width / this.ratio);
    const lit = this.lit();
    const scale = this.scale;
    const [tx, ty] = this.target;
    const [mx, my] = this.middle;
    const pass = (wanted) => {
      for (let k = 0; k < model.n; k += 1) {
        const i = this.look.order[k];
        if ((lit !== null && lit[i] !== wanted) || (model.hidden !== null && model.hidden[i])) continue;
        const size = grown === null ? 0 : grown[i];
        const side = sides[size];
        const x = mx + (xy[2 * i] - tx) * scale - side / 2;
        const y = my - (xy[2 * i + 1] - ty) * scale - side / 2;
        if (x > -side && x < this.width && y > -side && y < this.height) pen.drawImage(stamps[size][codes[i]], x, y, side, side);
      }
    };
    if (lit !== null) {
      pen.globalAlpha = this.look.ink.dim;
      pass(0);
    }
    pen.globalAlpha = model.n > 8000 ? 0.8 : 0.9;
    pass(1);
    pen.globalAlpha = 1;
    this.drawMoves(pen);
  }

  /** A line from each selected row to its place in the other run, where both lie in one frame. */
  drawMoves(pen) {
    const { moves, model } = this;
    let drawn = 0;
    for (let i = 0; moves !== null && i < model.n && drawn < MAX_MOVES; i += 1) {
      if (!model.selected[i] || !model.drawn(i) || !Number.isFinite(moves.from[2 * i] + moves.to[2 * i])) continue;
      const [x0, y0] = this.toScreen(moves.from[2 * i], moves.from[2 * i + 1]);
      const [x1, y1] = this.toScreen(moves.to[2 * i], moves.to[2 * i + 1]);
      arrow(pen, x0, y0, x1, y1, this.look.ink.text);
      drawn += 1;
    }
    this.root.dataset.moves = drawn;
  }

  /** 1 for rows that stand out, 0 for the rest, null where nothing is singled out. */
  lit() {
    const { model } = this;
    const some = model.selected.includes(1);
    if (model.matched !== null && some) return model.matched.map((m, i) => m | model.selected[i]);
    if (model.matched !== null) return model.matched;
    return some ? model.selected : null;
  }

  drawOver() {
    const pen = this.over.getContext("2d");
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    const { ink } = this.look;
    if (this.gesture !== null && this.gesture.points.length > 1) {
      pen.beginPath();
      this.gesture.points.forEach(([x, y], i) => (i ? pen.lineTo(x, y) : pen.moveTo(x, y)));
      pen.closePath();
      pen.fillStyle = ink.veil;
      pen.fill();
      pen.strokeStyle = ink.accent;
      pen.lineWidth = 1.25;
      pen.stroke();
    }
    if (this.gesture !== null && this.gesture.keys) cross(pen, this.gesture.last, ink);
    const row = this.model.hover;
    if (row < 0 || !Number.isFinite(this.xy[2 * row])) {
      this.root.dataset.ring = "";
      return;
    }
    const [x, y] = this.toScreen(this.xy[2 * row], this.xy[2 * row + 1]);
    const around = this.radius() * (this.look.sizes === null ? 1 : SIZES[this.look.sizes[row]]) + 4;
    pen.lineWidth = 4;
    pen.strokeStyle = ink.paper;
    ring(pen, x, y, around);
    pen.lineWidth = 2;
    pen.strokeStyle = ink.text;
    ring(pen, x, y, around);
    this.root.dataset.ring = String(row);
  }
}

/** The corner that the arrow keys move. */
function cross(pen, [x, y], ink) {
  for (const [width, colour] of [[4, ink.paper], [2, ink.accent]]) {
    pen.lineWidth = width;
    pen.strokeStyle = colour;
    line(pen, x - 9, y, x + 9, y);
    line(pen, x, y - 9, x, y + 9);
  }
}

function arrow(pen, x0, y0, x1, y1, colour) {
  const long = Math.hypot(x1 - x0, y1 - y0);
  if (long < 1) return;
  const [ux, uy] = [(x1 - x0) / long, (y1 - y0) / long];
  const head = Math.min(7, long / 2);
  pen.strokeStyle = colour;
  pen.lineWidth = 1;
  line(pen, x0, y0, x1, y1);
  line(pen, x1 - head * (ux - 0.5 * uy), y1 - head * (uy + 0.5 * ux), x1, y1);
  line(pen, x1 - head * (ux + 0.5 * uy), y1 - head * (uy - 0.5 * ux), x1, y1);
}

function line(pen, x0, y0, x1, y1) {
  pen.beginPath();
  pen.moveTo(x0, y0);
  pen.lineTo(x1, y1);
  pen.stroke();
}

function ring(pen, x, y, r) {
  pen.beginPath();
  pen.arc(x, y, r, 0, 2 * Math.PI);
  pen.stroke();
}
