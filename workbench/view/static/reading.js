// The reading pane: one row in full, characters exactly as they are, and the tokens of its prompt.

const LONG = 20_000; // characters that the reading pane lays out at once

class Reading {
  constructor(model, look) {
    Object.assign(this, { model, look });
    this.row = -1;
    this.asker = null; // asks Python for the nearest rows, where there is one
    this.root = el("div", { class: "wb-reading", "aria-label": "Row in full" });
  }

  show(row) {
    const { model } = this;
    this.row = row;
    if (row < 0) {
      this.root.replaceChildren(el("h3", {}, "Reading"), el("p", { class: "wb-soft" }, "Point at a mark or a table row to read it in full. In a map the arrow keys go from point to point."));
      return;
    }
    const facts = el("dl", {}, model.token === null ? null : fact("position", String(model.token[row])));
    if (model.piece(row) !== null) facts.append(fact("token", model.piece(row)));
    for (const column of model.columns) if (column.show(row) !== "") facts.append(fact(head(column.name, 200), head(column.show(row), 500)));
    const text = model.text(row);
    const name = model.promptIds === null ? `row ${count(model.rowId(row))}` : `row ${count(model.rowId(row))} · id ${reveal(String(model.promptIds[model.prompt[row]]))}`;
    const near = this.asker === null ? [] : [el("button", { type: "button", on: { click: () => this.asker(row) } }, "Select nearest rows")];
    this.root.replaceChildren(el("h3", {}, name), this.fullText(text, row), ...this.strip(row), facts, ...near);
    const odd = reveal(head(text, 2000));
    if (odd !== head(text, 2000)) facts.before(el("p", { class: "wb-soft wb-odd" }, "with control characters shown: ", say(odd)));
  }

  /** A text of any length; a very long one is laid out only when asked for. */
  fullText(text, row) {
    const node = el("p", { class: "wb-text", "data-row": row });
    if (text === "") node.append(el("i", { class: "wb-soft" }, "no text"));
    else if (text.length <= LONG) node.append(say(text));
    else node.append(say(text.slice(0, LONG)), el("button", { type: "button", on: { click: () => node.replaceChildren(say(text)) } }, `… show all ${count(text.length)} characters`));
    return node;
  }

  /** The drawn tokens of a row's prompt, each with the colour of its own value; by position where texts are not known. */
  strip(row) {
    const { model, look } = this;
    if (model.token === null) return [];
    const prompt = model.prompt[row];
    let [first, last] = [row, row];
    while (first > 0 && model.prompt[first - 1] === prompt) first -= 1;
    while (last < model.n - 1 && model.prompt[last + 1] === prompt) last += 1;
    const strip = el("p", { class: "wb-strip", role: "group", "aria-label": "Tokens of this prompt" });
    for (let i = first; i <= last; i += 1) strip.append(this.piece(i, row));
    const by = look.column === null ? null : el("p", { class: "wb-soft wb-strip-by" }, "tokens coloured by ", say(look.column.name, 60));
    return by === null ? [strip] : [strip, by];
  }

  piece(i, row) {
    const { model, look } = this;
    const text = model.piece(i) === null ? String(model.token[i]) : reveal(model.piece(i));
    const value = look.column === null ? "" : brief(look.column.show(i), 80);
    const node = el("button", { type: "button", class: i === row ? "wb-piece wb-here" : "wb-piece", title: value || null, "data-row": i, on: { click: (event) => model.select([i], howOf(event)) } }, say(text, 60));
    node.style.setProperty("border-bottom-color", look.paint.styles[look.paint.codes[i]].fill, "important"); // beats the host's
    return node;
  }
}
