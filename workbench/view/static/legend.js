// The legend is also the filter: a class is selected by its name and hidden by its box; numbers are cut at both ends.

class Legend {
  constructor(model, look) {
    Object.assign(this, { model, look });
    this.root = el("div", { class: "wb-legend", role: "group", "aria-label": "Legend and filter" });
    this.off = new Set();
    this.limits = [-Infinity, Infinity];
  }

  /** Start anew for the column that now colours the maps; filters of the former column end. */
  draw(reset) {
    if (reset) {
      this.off.clear();
      this.limits = [-Infinity, Infinity];
      if (this.model.hidden !== null) this.model.setHidden(null);
    }
    const { column } = this.look;
    if (column === null) this.root.replaceChildren(el("span", { class: "wb-soft" }, "one colour: every row is drawn alike"));
    else if (column.kind === "number") this.root.replaceChildren(...this.numbers(column));
    else this.root.replaceChildren(...this.classes(column));
  }

  classes(column) {
    const { shown, styles } = this.look.paint;
    const items = column.order.slice(0, shown).map((label, i) => this.entry(styles[i], say(column.labels[label], 60), column.sizes[label], [label]));
    const rest = column.order.slice(shown);
    if (rest.length) items.push(this.entry(OTHER, el("i", {}, `other (${count(rest.length)} values)`), rest.reduce((s, l) => s + column.sizes[l], 0), rest));
    if (column.sizes[column.missing]) items.push(this.entry(OTHER, el("i", {}, "no value"), column.sizes[column.missing], [column.missing]));
    return items;
  }

  entry(style, name, size, labels) {
    const on = !labels.every((label) => this.off.has(label));
    const box = el("input", { type: "checkbox", "aria-label": "show this class" });
    box.checked = on;
    box.addEventListener("change", () => {
      for (const label of labels) { if (box.checked) this.off.delete(label); else this.off.add(label); }
      this.apply();
    });
    const pick = el("button", { type: "button", class: "wb-class", title: "Select these rows (Shift adds, Alt subtracts)", on: { click: (event) => this.pick(labels, event) } },
      swatch(style), name, el("span", { class: "wb-soft" }, ` ${count(size)}`));
    return el("span", { class: "wb-entry" }, box, pick);
  }

  pick(labels, event) {
    const wanted = new Set(labels);
    const rows = [];
    for (let i = 0; i < this.model.n; i += 1) if (wanted.has(this.look.column.at(i)) && this.model.drawn(i)) rows.push(i);
    this.model.select(rows, howOf(event));
  }

  numbers(column) {
    const { ramp, low, high, signed } = this.look.paint;
    const bar = svg("svg", { class: "wb-ramp", viewBox: `0 0 ${LEVELS} 10`, preserveAspectRatio: "none", "aria-hidden": "true" });
    ramp.forEach((fill, i) => bar.append(svg("rect", { x: i, y: 0, width: 1.05, height: 10, fill })));
    const cut = column.range.clipped ? ["≤ ", "≥ "] : ["", ""];
    const ends = [cut[0] + figure(low), signed ? "0" : figure(column.range.log ? Math.sqrt(low * high) : (low + high) / 2), cut[1] + figure(high)];
    const scale = el("div", { class: "wb-scale" }, bar, el("div", { class: "wb-ends" }, ends.map((t) => el("span", {}, t))));
    const input = (index, label) => {
      const node = el("input", { type: "number", step: "any", "aria-label": label, placeholder: figure(index ? column.range.high : column.range.low) });
      node.addEventListener("change", () => {
        this.limits[index] = node.value === "" ? (index ? Infinity : -Infinity) : Number(node.value);
        this.apply();
      });
      return node;
    };
    return [scale, el("span", { class: "wb-limits" }, "show from ", input(0, "smallest value shown"), " to ", input(1, "largest value shown"))];
  }

  apply() {
    const { column } = this.look;
    const [from, to] = this.limits;
    const all = this.off.size === 0 && from === -Infinity && to === Infinity;
    if (all) {
      this.model.setHidden(null);
      return;
    }
    const hidden = new Uint8Array(this.model.n);
    for (let i = 0; i < hidden.length; i += 1) {
      const value = column.at(i);
      hidden[i] = column.kind === "number" ? !(value >= from && value <= to) : this.off.has(value);
    }
    this.model.setHidden(hidden);
  }
}

function swatch({ fill, shape }) {
  const r = 5;
  const corners = { triangle: "7,1.5 12.5,11.5 1.5,11.5", diamond: "7,0.8 13,7 7,13.2 1,7" };
  const mark = shape === "circle" ? svg("circle", { cx: 7, cy: 7, r, fill })
    : shape === "square" ? svg("rect", { x: 2.2, y: 2.2, width: 9.6, height: 9.6, fill })
    : svg("polygon", { points: corners[shape], fill });
  mark.setAttribute("class", "wb-edge");
  return svg("svg", { class: "wb-swatch", viewBox: "0 0 14 14", "aria-hidden": "true" }, mark);
}
