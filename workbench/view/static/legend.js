// The legend is also the filter: a class is selected by its name and hidden by its box; numbers are cut at both ends.

class Legend {
  constructor(model, look) {
    Object.assign(this, { model, look });
    this.root = el("div", { class: "wb-legend", role: "group", "aria-label": "Legend and filter" });
    model.on("filter", () => this.draw());
  }

  get off() {
    return this.model.filters.get(this.look.column.name)?.off || new Set();
  }

  draw() {
    const { column, size } = this.look;
    const parts = column === null ? [el("span", { class: "wb-soft" }, "one colour: every row is drawn alike")] : column.kind === "number" ? this.numbers(column) : this.classes(column);
    this.root.replaceChildren(...parts, ...(size === null ? [] : [this.sizes(size)]));
  }

  sizes(column) {
    const { low, high } = column.range;
    const mark = (r) => svg("svg", { class: "wb-swatch", viewBox: "0 0 14 14", "aria-hidden": "true" }, svg("circle", { cx: 7, cy: 7, r, class: "wb-size-mark" }));
    return el("span", { class: "wb-sizes" }, "size: ", say(column.name, 60), " ", mark(2), figure(low), " to ", mark(6), figure(high));
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
      const off = new Set(this.off);
      for (const label of labels) { if (box.checked) off.delete(label); else off.add(label); }
      this.model.setFilter(this.look.column.name, off.size ? { off } : null);
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
    const input = (key, label) => limitInput(this.model, column, key, label);
    return [scale, el("span", { class: "wb-limits" }, "show from ", input("from", "smallest value shown"), " to ", input("to", "largest value shown"))];
  }
}

/** A field for one end of what is shown of a column of numbers. */
function limitInput(model, column, key, label) {
  const open = { from: -Infinity, to: Infinity };
  const rule = () => model.filters.get(column.name) || open;
  const node = el("input", { type: "number", step: "any", "aria-label": label, placeholder: figure(key === "to" ? column.range.high : column.range.low) });
  if (Number.isFinite(rule()[key])) node.value = String(Number(rule()[key].toPrecision(4)));
  node.addEventListener("change", () => {
    const next = { ...rule(), [key]: node.value === "" ? open[key] : Number(node.value) };
    model.setFilter(column.name, next.from === -Infinity && next.to === Infinity ? null : next);
  });
  return node;
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
