// The table twin: the same rows as the maps, in the order a reader asks for; only what is in sight is in the page.

const LINE = 30; // CSS pixels of one table row

class Table {
  constructor(model) {
    this.model = model;
    this.onlySelected = false;
    this.sort = { key: null, down: false };
    this.cursor = 0;
    this.body = el("tbody", {});
    this.heads = el("tr", { role: "row" });
    this.scroller = el("div", { class: "wb-table-scroll", tabindex: "0", role: "group", "aria-label": "Table of rows. Up and down move, Enter selects, Shift adds, Alt subtracts, Control A selects all rows listed, Escape clears." },
      el("table", { class: "wb-table", role: "grid" }, el("thead", {}, this.heads), this.body));
    this.status = el("span", { class: "wb-soft" });
    this.root = el("div", { class: "wb-table-box" }, this.scroller);
    this.fields = this.listFields();
    this.drawHeads();
    this.scroller.addEventListener("scroll", () => this.fill(), { passive: true });
    this.scroller.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.fill()).observe(this.scroller);
    for (const event of ["selection", "search", "filter"]) model.on(event, () => this.refresh());
    model.on("hover", () => this.markHover());
    this.refresh();
  }

  listFields() {
    const { model } = this;
    const fields = [{ name: "row", number: true, show: (i) => String(model.rowId(i)), compare: (a, b) => model.rowId(a) - model.rowId(b) }];
    if (model.promptIds !== null) fields.push(field("id", (i) => String(model.promptIds[model.prompt[i]])));
    fields.push({ ...field("prompt", (i) => model.text(i)), wide: true });
    if (model.token !== null) fields.push({ name: "position", number: true, show: (i) => String(model.token[i]), compare: (a, b) => model.token[a] - model.token[b] });
    if (model.pieces !== null) fields.push(field("token", (i) => model.piece(i)));
    for (const column of model.columns) {
      fields.push({ name: column.name, number: column.kind === "number", show: (i) => column.show(i), compare: (a, b) => column.compare(a, b) });
    }
    return fields;
  }

  drawHeads() {
    this.heads.replaceChildren(...this.fields.map((f, index) => {
      const on = this.sort.key === index;
      const arrow = el("span", { "aria-hidden": "true" }, on ? (this.sort.down ? " ▾" : " ▴") : "");
      const button = el("button", { type: "button", on: { click: () => this.sortBy(index) } }, say(f.name, 60), arrow);
      return el("th", { scope: "col", class: f.number ? "wb-number" : null, "aria-sort": on ? (this.sort.down ? "descending" : "ascending") : "none" }, button);
    }));
  }

  sortBy(index) {
    const { key, down } = this.sort;
    if (key !== index) this.sort = { key: index, down: false };
    else this.sort = down ? { key: null, down: false } : { key: index, down: true };
    this.drawHeads();
    this.refresh();
  }

  refresh() {
    const { model } = this;
    const rows = [];
    for (let i = 0; i < model.n; i += 1) {
      if (this.onlySelected && !model.selected[i]) continue;
      if (model.matched !== null && !model.matched[i]) continue;
      if (model.hidden !== null && model.hidden[i]) continue;
      rows.push(i);
    }
    if (this.sort.key !== null) {
      const { compare } = this.fields[this.sort.key];
      const sign = this.sort.down ? -1 : 1;
      rows.sort((a, b) => sign * compare(a, b) || a - b);
    }
    this.rows = rows;
    this.cursor = Math.min(this.cursor, Math.max(0, rows.length - 1));
    this.status.replaceChildren(rows.length === model.n ? plural(model.n, "row") : `${count(rows.length)} of ${plural(model.n, "row")}`);
    this.scroller.firstChild.setAttribute("aria-rowcount", String(rows.length));
    this.fill();
  }

  /** Draw the rows in sight, with a blank of the right height before and after. */
  fill() {
    const { rows } = this;
    const seen = Math.ceil((this.scroller.clientHeight || 320) / LINE) + 6;
    const first = Math.max(0, Math.min(Math.floor(this.scroller.scrollTop / LINE) - 3, rows.length - seen));
    const last = Math.min(rows.length, first + seen);
    const lines = [];
    for (let k = first; k < last; k += 1) lines.push(this.line(k));
    this.body.replaceChildren(spacer(first * LINE, this.fields.length), ...lines, spacer((rows.length - last) * LINE, this.fields.length));
  }

  line(k) {
    const row = this.rows[k];
    const { model } = this;
    const cells = this.fields.map((f) => el("td", { class: [f.number && "wb-number", f.wide && "wb-wide"].filter(Boolean).join(" ") || null }, say(f.show(row), 300)));
    const on = {
      click: (event) => { this.cursor = k; model.select([row], howOf(event)); },
      mouseenter: () => model.setHover(row),
      mouseleave: () => model.setHover(-1),
    };
    return el("tr", { "data-row": row, "aria-rowindex": k + 1, "aria-selected": model.selected[row] ? "true" : "false", class: k === this.cursor ? "wb-cursor" : null, on }, cells);
  }

  markHover() {
    for (const tr of this.body.children) tr.classList.toggle("wb-hover", tr.dataset.row === String(this.model.hover));
  }

  key(event) {
    const page = Math.max(1, Math.floor(this.scroller.clientHeight / LINE) - 2);
    const jumps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.target !== this.scroller) return;
    if (event.key === "a" && (event.ctrlKey || event.metaKey)) this.model.select(this.rows);
    else if (event.key in jumps) this.moveTo(this.cursor + jumps[event.key]);
    else if ((event.key === "Enter" || event.key === " ") && this.rows.length) this.model.select([this.rows[this.cursor]], howOf(event));
    else if (event.key === "Escape") this.model.clear();
    else return;
    event.preventDefault();
  }

  moveTo(k) {
    this.cursor = Math.min(this.rows.length - 1, Math.max(0, k));
    const top = this.cursor * LINE;
    const { scrollTop, clientHeight } = this.scroller;
    if (top < scrollTop) this.scroller.scrollTop = top;
    else if (top + 2 * LINE > scrollTop + clientHeight) this.scroller.scrollTop = top + 2 * LINE - clientHeight;
    this.fill();
    if (this.rows.length) this.model.setHover(this.rows[this.cursor]);
  }
}

function field(name, show) {
  const order = (a, b) => { const x = show(a); const y = show(b); return x < y ? -1 : x > y ? 1 : 0; };
  return { name, number: false, show, compare: order };
}

function spacer(height, span) {
  const cell = el("td", { colspan: span, class: "wb-spacer" });
  cell.style.height = `${height}px`;
  return el("tr", { "aria-hidden": "true" }, cell);
}
