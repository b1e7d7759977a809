// What all views of a page share: rows, columns, one selection, one hover, one filter. Views listen, none owns another.

class Model {
  constructor(doc, blocks) {
    this.doc = doc;
    this.n = doc.rows.count;
    this.prompt = blocks[doc.rows.prompt];
    this.token = doc.rows.token === null ? null : blocks[doc.rows.token];
    this.ids = doc.rows.ids === null ? null : blocks[doc.rows.ids];
    this.pieces = doc.rows.pieces === null ? null : { codes: blocks[doc.rows.pieces.codes], texts: blocks[doc.rows.pieces.texts] };
    this.texts = blocks[doc.prompts.texts];
    this.promptIds = doc.prompts.ids === null ? null : blocks[doc.prompts.ids];
    this.base = doc.columns.map((column) => new Column(column, blocks, this.prompt));
    this.columns = this.base;
    this.setMaps(doc.maps, blocks);
    this.selected = new Uint8Array(this.n);
    this.matched = null; // rows that the search found, or null where nothing is searched
    this.filters = new Map(); // one condition a column, by its name: { off: Set of codes } or { from, to }
    this.hidden = null; // how many conditions each row fails: it is shown where none
    this.hover = -1;
    this.beyond = 0; // selected rows of the run that this view does not hold
    this.gesture = null; // how the selection was made, in map units
    this.names = new Map((doc.selections || []).map(({ name, rows }) => [name, rows]));
    this.listeners = new Map();
  }

  /** Take maps, each with its frames and their coordinates. */
  setMaps(maps, blocks) {
    this.maps = maps;
    this.xy = maps.map((map) => map.frames.map((frame) => frame.panes.map((pane) => blocks[pane.xy])));
  }

  /** Take columns that came later than the others. */
  addColumns(columns, blocks) {
    this.columns = [...this.base, ...columns.map((column) => new Column(column, blocks, this.prompt))];
  }

  column(name) {
    return this.columns.find((column) => column.name === name);
  }

  on(event, call) {
    if (!this.listeners.has(event)) this.listeners.set(event, []);
    this.listeners.get(event).push(call);
  }

  emit(event, detail) {
    for (const call of this.listeners.get(event) || []) call(detail);
  }

  rowId(row) {
    return this.ids === null ? row : this.ids[row];
  }

  text(row) {
    const text = this.texts[this.prompt[row]];
    return text === null || text === undefined ? "" : text;
  }

  piece(row) {
    return this.pieces === null ? null : this.pieces.texts[this.pieces.codes[row]];
  }

  /** Whether a row is drawn: not filtered away, and with a place in every shown map that has it. */
  drawn(row) {
    return this.hidden === null || !this.hidden[row];
  }

  setHover(row) {
    if (row === this.hover) return;
    this.hover = row;
    this.emit("hover", row);
  }

  /** Combine a set of rows with the selection: "set", "add" or "subtract". */
  select(rows, how = "set", gesture = null) {
    if (how === "set") this.selected.fill(0);
    const value = how === "subtract" ? 0 : 1;
    for (const row of rows) this.selected[row] = value;
    this.gesture = how === "set" ? gesture : null;
    this.emit("selection", "user");
  }

  invert() {
    for (let i = 0; i < this.n; i += 1) this.selected[i] ^= 1;
    this.gesture = null;
    this.emit("selection", "user");
  }

  clear() {
    this.select([]);
  }

  /** Take a mask from outside, without telling the outside back. */
  assign(mask) {
    this.selected.set(mask);
    this.gesture = null;
    this.emit("selection", "outside");
  }

  selectedRows() {
    const rows = [];
    for (let i = 0; i < this.n; i += 1) if (this.selected[i]) rows.push(i);
    return rows;
  }

  setMatched(matched) {
    this.matched = matched;
    this.emit("search");
  }

  /** Set the condition of one column, or end it with null; a row is hidden unless all conditions hold. */
  setFilter(name, rule) {
    if (rule === null) this.filters.delete(name);
    else this.filters.set(name, rule);
    this.applyFilters();
  }

  applyFilters() {
    const rules = [...this.filters].map(([name, rule]) => [this.column(name), rule]);
    this.blame = new Uint8Array(this.n); // the last condition that a row fails
    const fails = new Uint8Array(this.n);
    rules.forEach(([column, rule], k) => {
      for (let i = 0; column !== undefined && i < this.n; i += 1) {
        if (column.meets(i, rule)) continue;
        fails[i] += 1;
        this.blame[i] = k;
      }
    });
    this.hidden = rules.length ? fails : null;
    this.emit("filter");
  }

  /** Which rows all conditions but that of one column would show; null for all. */
  othersMet(name) {
    if (this.hidden === null) return null;
    const own = [...this.filters.keys()].indexOf(name);
    return this.hidden.map((fails, i) => (fails === 0 || (fails === 1 && this.blame[i] === own) ? 1 : 0));
  }

  /** The conditions as plain JSON, and back: classes by their labels, open ends as null. */
  filterState() {
    const end = (x) => (Number.isFinite(x) ? x : null);
    return Object.fromEntries([...this.filters].map(([name, rule]) => {
      const labels = rule.off === undefined ? null : this.column(name)?.labels || [];
      return [name, labels === null ? { from: end(rule.from), to: end(rule.to) } : { off: [...rule.off].map((code) => labels[code] ?? null) }];
    }));
  }

  takeFilters(state) {
    this.filters.clear();
    for (const [name, { off, from, to }] of Object.entries(state)) {
      const column = this.column(name);
      if (column === undefined || (column.kind === "number") !== (off === undefined)) continue;
      const codes = new Map(off === undefined ? [] : column.labels.map((label, code) => [label, code]));
      this.filters.set(name, off === undefined ? { from: from ?? -Infinity, to: to ?? Infinity } : { off: new Set(off.map((label) => codes.get(label) ?? column.missing)) });
    }
    this.applyFilters();
  }
}

class Column {
  constructor({ name, kind, per, values, labels, low, high, signed, clipped, scale }, blocks, prompt) {
    this.name = name;
    this.kind = kind;
    this.values = blocks[values];
    this.prompt = per === "prompt" ? prompt : null;
    if (kind === "number") this.range = { low, high, signed, clipped, log: scale === "log" };
    else {
      this.labels = blocks[labels];
      this.missing = this.labels.length;
      this.order = this.bySize();
    }
  }

  at(row) {
    return this.values[this.prompt === null ? row : this.prompt[row]];
  }

  /** Whether a row meets a condition of this column; a row without a number meets none. */
  meets(row, { off, from, to }) {
    const value = this.at(row);
    return off === undefined ? value >= from && value <= to : !off.has(value);
  }

  show(row) {
    const value = this.at(row);
    if (this.kind === "number") return Number.isNaN(value) ? "" : figure(value, 4);
    return value === this.missing ? "" : this.labels[value];
  }

  /** How many prompts the column speaks of. */
  prompts() {
    return this.prompt === null ? this.values.length : Math.max(1, this.prompt[this.prompt.length - 1] + 1);
  }

  /** Labels from most to least rows, so that the clearest colours go to the largest classes. */
  bySize() {
    const sizes = new Uint32Array(this.labels.length + 1);
    const n = this.prompt === null ? this.values.length : this.prompt.length;
    for (let i = 0; i < n; i += 1) sizes[this.at(i)] += 1;
    this.sizes = sizes;
    return [...this.labels.keys()].sort((a, b) => sizes[b] - sizes[a] || a - b);
  }

  compare(a, b) {
    const x = this.at(a);
    const y = this.at(b);
    if (this.kind === "number") return (Number.isNaN(x) - Number.isNaN(y)) || x - y || 0;
    if (x === this.missing || y === this.missing) return (x === this.missing) - (y === this.missing);
    const s = this.labels[x];
    const t = this.labels[y];
    return s < t ? -1 : s > t ? 1 : 0;
  }
}
