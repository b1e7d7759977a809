// One small chart a column: a histogram to brush, or bars to click. They filter the maps, the table and one another; each
// chart counts the rows that the other columns let through.

const BINS = 24;
const BARS = 8;
const CHART = { width: 220, height: 54 };

class Filters {
  constructor(model) {
    this.model = model;
    this.line = el("p", { class: "wb-filter-line", role: "status", hidden: true });
    this.grid = el("div", { class: "wb-filter-grid" });
    this.box = el("details", {}, el("summary", {}, "Filter by column"), this.grid);
    this.root = el("div", { class: "wb-filters" }, this.box, this.line);
    this.box.addEventListener("toggle", () => this.draw());
    model.on("filter", () => { this.tell(); this.refresh(); });
    this.renew();
  }

  /** Take the columns that the model now has. */
  renew() {
    this.charts = null;
    this.box.hidden = !this.model.columns.some(chartable);
    this.tell();
    this.draw();
  }

  draw() {
    if (!this.box.open) return;
    if (this.charts === null) {
      this.charts = this.model.columns.filter(chartable).map((column) => (column.kind === "number" ? new Histogram(this.model, column) : new Bars(this.model, column)));
      this.grid.replaceChildren(...this.charts.map((chart) => chart.root));
    }
    this.refresh();
  }

  refresh() {
    if (this.box.open && this.charts !== null) for (const chart of this.charts) chart.refresh();
  }

  /** Say what is filtered, whether or not the charts are open. */
  tell() {
    const { model } = this;
    const names = [...model.filters.keys()];
    this.line.hidden = names.length === 0;
    if (this.line.hidden) return;
    const shown = model.hidden.reduce((sum, fails) => sum + (fails === 0), 0);
    this.line.replaceChildren(`${count(shown)} of ${plural(model.n, "row")} shown, filtered by `, ...names.flatMap((name, i) => [i ? ", " : "", say(name, 60)]), " ",
      el("button", { type: "button", on: { click: () => model.takeFilters({}) } }, "Clear filters"));
  }
}

/** A column that says something in bars: numbers that differ, or classes of which some hold several prompts. */
function chartable(column) {
  if (column.kind === "number") return column.range.low < column.range.high;
  const most = column.sizes[column.order[0]] || 0;
  return column.labels.length > 1 && column.labels.length <= Math.max(BARS, column.prompts() / 3) && most > 1;
}

class Histogram {
  constructor(model, column) {
    Object.assign(this, { model, column });
    this.spread = spreadOf(column.range);
    this.all = this.counts(null);
    this.chart = svg("svg", { class: "wb-hist", viewBox: `0 0 ${CHART.width} ${CHART.height}`, role: "img", preserveAspectRatio: "none" });
    this.limits = el("div", { class: "wb-limits" });
    this.root = el("div", { class: "wb-filter" }, el("h4", {}, say(column.name, 60), this.spread.wide ? el("span", { class: "wb-soft" }, " (logarithmic)") : null), this.chart, this.limits);
    this.listen();
  }

  bin(row) {
    const value = this.column.at(row);
    return Number.isNaN(value) ? -1 : Math.min(BINS - 1, Math.max(0, Math.floor(this.spread.share(value) * BINS)));
  }

  counts(rows) {
    const sizes = new Uint32Array(BINS);
    for (let i = 0; i < this.model.n; i += 1) {
      if (rows !== null && !rows[i]) continue;
      const bin = this.bin(i);
      if (bin >= 0) sizes[bin] += 1;
    }
    return sizes;
  }

  refresh() {
    const { model, column } = this;
    const rule = model.filters.get(column.name) || null;
    const shown = this.counts(model.othersMet(column.name));
    const top = Math.max(...this.all, 1);
    const wide = CHART.width / BINS;
    const bars = (sizes, name) => [...sizes].map((size, i) => svg("rect", { class: name, x: i * wide + 0.5, width: wide - 1, y: CHART.height * (1 - size / top), height: CHART.height * (size / top) }));
    this.chart.replaceChildren(...bars(this.all, "wb-c-band"), ...bars(shown, "wb-c-bar"), ...(rule === null ? [] : this.veils(rule)));
    this.chart.setAttribute("aria-label", `Histogram of ${reveal(column.name)}${rule === null ? "" : ", filtered"}`);
    if (this.limits.contains(document.activeElement)) return; // do not take a field from under the hands
    const input = (key, label) => limitInput(model, column, key, `${label} of ${reveal(column.name)}`);
    this.limits.replaceChildren(input("from", "smallest value shown"), " to ", input("to", "largest value shown"));
  }

  /** What lies outside of the brush is veiled. */
  veils({ from, to }) {
    const x = (v) => CHART.width * Math.min(1, Math.max(0, this.spread.share(v)));
    const [left, right] = [from === -Infinity ? 0 : x(from), to === Infinity ? CHART.width : x(to)];
    return [[0, left], [right, CHART.width]].map(([a, b]) => svg("rect", { class: "wb-hist-veil", x: a, y: 0, width: Math.max(0, b - a), height: CHART.height }));
  }

  listen() {
    const share = (event) => {
      const box = this.chart.getBoundingClientRect();
      return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    };
    let start = null;
    this.chart.addEventListener("pointerdown", (event) => { start = share(event); this.chart.setPointerCapture(event.pointerId); });
    this.chart.addEventListener("pointermove", (event) => { if (start !== null) this.brush(start, share(event)); });
    this.chart.addEventListener("pointerup", (event) => { if (start !== null) this.brush(start, share(event)); start = null; });
    this.chart.addEventListener("pointercancel", () => { start = null; });
  }

  /** Show what lies between two shares of the width; a click without a way ends the filter. An edge is open. */
  brush(a, b) {
    const [from, to] = a < b ? [a, b] : [b, a];
    if (to - from < 0.02) this.model.setFilter(this.column.name, null);
    else this.model.setFilter(this.column.name, { from: from === 0 ? -Infinity : this.spread.at(from), to: to === 1 ? Infinity : this.spread.at(to) });
  }
}

class Bars {
  constructor(model, column) {
    Object.assign(this, { model, column });
    const first = column.order.slice(0, BARS).map((code) => [code]);
    const rest = column.order.slice(BARS);
    this.groups = rest.length ? [...first, rest] : first;
    this.items = el("div", { class: "wb-bars", role: "group", "aria-label": `Classes of ${reveal(column.name)}` });
    this.root = el("div", { class: "wb-filter" }, el("h4", {}, say(column.name, 60)), this.items);
  }

  refresh() {
    const { model, column } = this;
    const rows = model.othersMet(column.name);
    const sizes = new Uint32Array(column.labels.length + 1);
    for (let i = 0; i < model.n; i += 1) if (rows === null || rows[i]) sizes[column.at(i)] += 1;
    const off = model.filters.get(column.name)?.off || null;
    const sum = (codes, of) => codes.reduce((total, code) => total + of[code], 0);
    const top = Math.max(...this.groups.map((codes) => sum(codes, column.sizes)), 1);
    const focused = [...this.items.children].indexOf(document.activeElement);
    this.items.replaceChildren(...this.groups.map((codes) => this.entry(codes, off, sum(codes, sizes), sum(codes, column.sizes), top)));
    if (focused >= 0) this.items.children[focused].focus();
  }

  entry(codes, off, shown, all, top) {
    const on = off === null || codes.some((code) => !off.has(code));
    const bar = svg("svg", { class: "wb-bar-mark", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("rect", { class: "wb-c-band", x: 0, y: 0, width: (100 * all) / top, height: 10 }), svg("rect", { class: on ? "wb-c-bar" : "wb-c-band", x: 0, y: 0, width: (100 * shown) / top, height: 10 }));
    const name = codes.length === 1 ? say(this.column.labels[codes[0]], 60) : el("i", {}, `other (${count(codes.length)} values)`);
    return el("button", { type: "button", "aria-pressed": String(off !== null && on), class: on ? null : "wb-off", title: "Show only these (Shift adds or takes away)", on: { click: (event) => this.choose(codes, off, event.shiftKey) } },
      el("span", { class: "wb-bar-name" }, name), bar, el("span", { class: "wb-soft" }, count(shown)));
  }

  /** Show only some classes; with Shift, show or hide them beside the others; the same click again shows all. */
  choose(codes, off, further) {
    const { column } = this;
    const all = [...column.order, column.missing];
    let next = new Set(all.filter((code) => !codes.includes(code)));
    if (further && off !== null) {
      next = new Set(off);
      for (const code of codes) if (!next.delete(code)) next.add(code);
    } else if (off !== null && next.size === off.size && [...next].every((code) => off.has(code))) next = new Set();
    this.model.setFilter(column.name, next.size === 0 || next.size === all.length ? null : { off: next });
  }
}
