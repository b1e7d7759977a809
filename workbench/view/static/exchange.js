// Selections under a name, and as text that Python reads.

class Exchange {
  constructor(model) {
    this.model = model;
    this.area = el("textarea", { rows: 4, spellcheck: "false", "aria-label": "Selection as JSON" });
    this.name = el("input", { type: "text", placeholder: "name", "aria-label": "Name of the selection" });
    this.chips = el("span", { class: "wb-chips" });
    this.said = el("span", { class: "wb-message", role: "alert" });
    this.pair = el("div", { class: "wb-bar", hidden: true });
    this.asker = null; // asks Python for a probe of two selections, where there is one
    model.on("selection", () => { if (document.activeElement !== this.area) this.write(); });
    model.on("names", () => this.list());
    const button = (text, call) => el("button", { type: "button", on: { click: call } }, text);
    this.root = el("details", { class: "wb-exchange" }, el("summary", {}, "Selections: keep, copy, paste"),
      el("div", { class: "wb-bar" }, this.name, button("Keep selection", () => this.keep()), this.chips),
      this.pair,
      this.area, el("div", { class: "wb-bar" }, button("Copy", () => this.copy()), button("Select from text", () => this.apply()), this.said,
        el("span", { class: "wb-soft" }, "Python reads this text: ", el("code", {}, "workbench.view.read_selection(text)"))));
    this.list();
    this.write();
  }

  list() {
    const { model } = this;
    this.chips.replaceChildren(...[...model.names].map(([key, rows]) => el("button", { type: "button", class: "wb-chip", on: { click: (event) => model.select(this.rowsOf(rows).rows, howOf(event)) } }, say(key, 60), ` ${count(rows.length)}`)));
    this.offerProbe();
  }

  /** Offer a probe that tells one kept selection from another. */
  offerProbe() {
    const names = [...this.model.names.keys()];
    this.pair.hidden = this.asker === null || names.length < 2;
    if (this.pair.hidden) return;
    const choice = (label, at) => {
      const node = el("select", { "aria-label": label }, names.map((name, i) => el("option", { value: i }, reveal(head(name, 60)))));
      node.value = String(at);
      return node;
    };
    const [first, second] = [choice("First selection", 0), choice("Second selection", 1)];
    const ask = () => this.asker(names[Number(first.value)], names[Number(second.value)]);
    this.pair.replaceChildren("Fit a probe on ", first, " against ", second, el("button", { type: "button", on: { click: ask } }, "Fit probe"));
  }

  write() {
    this.area.value = JSON.stringify(this.selection());
  }

  apply() {
    try {
      const { rows, lost } = this.rowsOf(readSelection(this.area.value, this.model.doc.run));
      this.model.select(rows);
      this.said.replaceChildren(lost ? `${plural(lost, "row id")} not on this page` : "");
    } catch (error) {
      this.said.replaceChildren(say(error.message, 200));
    }
  }

  async copy() {
    this.write();
    this.area.select();
    try {
      await navigator.clipboard.writeText(this.area.value);
      this.said.replaceChildren("copied");
    } catch {
      this.said.replaceChildren("the clipboard is blocked here: copy from the field");
    }
  }

  keep() {
    const { model } = this;
    if (this.name.value === "") return;
    model.names.set(this.name.value, model.selectedRows().map((row) => model.rowId(row)));
    this.name.value = "";
    model.emit("names", "user");
    this.write();
  }

  selection() {
    const { model } = this;
    const rows = model.selectedRows().map((row) => model.rowId(row));
    const made = model.gesture === null ? {} : { made: model.gesture };
    const named = model.names.size ? { named: Object.fromEntries(model.names) } : {};
    return { workbench: "selection", version: 1, run: model.doc.run, rows, ...named, ...made };
  }

  /** Page rows of run row ids, and how many are not on this page. */
  rowsOf(ids) {
    if (this.index === undefined) this.index = new Map(Array.from({ length: this.model.n }, (_, i) => [this.model.rowId(i), i]));
    const rows = ids.filter((id) => this.index.has(id)).map((id) => this.index.get(id));
    return { rows, lost: ids.length - rows.length };
  }
}

/** Row ids of a selection text; refuses what is not one, and a selection of another run. */
function readSelection(text, run) {
  let value;
  try { value = JSON.parse(text); } catch { throw new Error("This is not JSON. Paste the text of a selection, or a list of row ids."); }
  const rows = Array.isArray(value) ? value : value && value.workbench === "selection" ? value.rows : null;
  if (!Array.isArray(rows) || !rows.every((r) => Number.isInteger(r) && r >= 0)) throw new Error("No row ids found. Paste the text of a selection, or a list of row ids.");
  if (!Array.isArray(value) && value.version > 1) throw new Error(`This selection is of version ${value.version}; this page reads version 1.`);
  if (!Array.isArray(value) && value.run && value.run !== run) throw new Error("This selection belongs to another run.");
  return rows;
}
