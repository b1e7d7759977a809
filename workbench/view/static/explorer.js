// Maps, their controls, the table twin and the reading pane, all on one model.

const INK = {
  light: { text: "#1c2026", soft: "#5b626d", grid: "#e9eaec", paper: "#ffffff", edge: "rgba(20,24,30,0.28)", accent: "#0b5cad", veil: "rgba(11,92,173,0.10)", dim: 0.13 },
  dark: { text: "#eceef1", soft: "#a2a9b4", grid: "#2b2f36", paper: "#17191d", edge: "rgba(0,0,0,0.45)", accent: "#7db8f0", veil: "rgba(125,184,240,0.14)", dim: 0.24 },
};

/** A shuffled drawing order, the same on every machine, so that no class lies on top only because it comes last. */
function drawingOrder(n) {
  const order = Int32Array.from({ length: n }, (_, i) => i);
  let state = 0x9e3779b9;
  for (let i = n - 1; i > 0; i -= 1) {
    state = (Math.imul(state ^ (state >>> 15), 0x2c1b3c6d) + 0x6d2b79f5) | 0;
    const j = (state >>> 0) % (i + 1);
    [order[i], order[j]] = [order[j], order[i]];
  }
  return order;
}

class Explorer {
  constructor(model, page) {
    this.model = model;
    this.page = page;
    this.maps = model.maps;
    this.search = new Search(model);
    this.look = { column: null, paint: null, size: null, sizes: null, order: drawingOrder(model.n), tool: "lasso", ink: INK.light, font: "system-ui, sans-serif" };
    this.at = { map: 0, frame: 0 };
    this.legend = new Legend(model, this.look);
    this.table = new Table(model);
    this.stage = el("div", { class: "wb-maps" });
    this.quality = el("p", { class: "wb-quality" });
    this.live = el("p", { class: "wb-live", "aria-live": "polite", role: "status" });
    this.shown = el("strong", { class: "wb-count" });
    this.filters = new Filters(model);
    this.reading = new Reading(model, this.look);
    this.exchange = new Exchange(model);
    this.message = el("span", { class: "wb-message", role: "alert" });
    this.root = el("div", { class: "wb-explorer" }, this.bar(), this.actions(), this.stage, this.legend.root, this.filters.root, this.quality, this.live,
      el("div", { class: "wb-under" }, this.tablePanel(), this.reading.root), this.exchange.root);
    model.on("selection", () => { this.redraw(); this.tell(); });
    model.on("search", () => { this.redraw(); this.tell(); });
    model.on("filter", () => { this.redraw(); this.tell(); });
    model.on("hover", (row) => this.hovered(row));
    model.on("say", (words) => this.announce(words));
    page.onTheme((dark) => this.retheme(dark));
    this.colourBy(model.doc.colour);
    this.open(0, 0);
    this.tell();
    this.reading.show(-1);
  }

  // --- controls

  bar() {
    this.tabBox = el("div", { class: "wb-tabs", role: "group", "aria-label": "Projection" });
    this.drawTabs();
    this.slider = el("input", { type: "range", min: 0, step: 1, "aria-label": "Tap" });
    this.slider.addEventListener("input", () => this.open(this.at.map, Number(this.slider.value)));
    this.tap = el("output", {});
    this.layer = el("label", { class: "wb-layer" }, "Tap", this.slider, this.tap);
    this.colour = el("select", { "aria-label": "Colour by" });
    this.drawColours();
    this.colour.addEventListener("change", () => this.colourBy(Number(this.colour.value)));
    this.size = el("select", { "aria-label": "Size by" });
    this.size.addEventListener("change", () => this.sizeBy(Number(this.size.value)));
    this.drawSizes();
    return el("div", { class: "wb-bar" }, this.tabBox, this.layer, el("label", {}, "Colour", this.colour), el("label", {}, "Size", this.size), this.finder());
  }

  drawColours() {
    const options = this.model.columns.map((column, index) => el("option", { value: index }, reveal(column.name.slice(0, 60))));
    this.colour.replaceChildren(el("option", { value: "-1" }, "one colour"), ...options);
  }

  drawSizes() {
    const numbers = this.model.columns.map((column, index) => [column, index]).filter(([column]) => column.kind === "number");
    this.size.replaceChildren(el("option", { value: "-1" }, "all alike"), ...numbers.map(([column, index]) => el("option", { value: index }, reveal(column.name.slice(0, 60)))));
    this.size.closest("label")?.toggleAttribute("hidden", numbers.length === 0);
    this.size.disabled = numbers.length === 0;
  }

  /** Offer the columns that the model now has. */
  renewColumns() {
    const [colour, size] = [this.look.column, this.look.size].map((column) => (column === null ? -1 : this.model.columns.findIndex((c) => c.name === column.name)));
    this.drawColours();
    this.drawSizes();
    this.sizeBy(size);
    this.colourBy(colour);
    this.filters.renew();
    this.table.fields = this.table.listFields();
    this.table.drawHeads();
    this.table.refresh();
  }

  drawTabs() {
    this.tabs = this.maps.map((map, index) => el("button", { type: "button", "aria-pressed": "false", on: { click: () => this.open(index, 0) } }, say(map.name, 40)));
    this.tabBox.replaceChildren(...this.tabs);
    this.tabBox.hidden = this.maps.length < 2;
  }

  /** Show the maps that the model now has; the place that was open stays open where it still exists. */
  renewMaps() {
    const { method, frames } = this.maps[this.at.map];
    const { tap } = frames[this.at.frame];
    this.maps = this.model.maps;
    this.drawTabs();
    this.mounted = null;
    this.goTo(method, tap);
  }

  /** Open a method and a tap by name, or as much of that as there is. */
  goTo(method, tap) {
    const map = Math.max(0, this.maps.findIndex((m) => m.method === method));
    const frame = Math.max(0, this.maps[map].frames.findIndex((f) => f.tap === tap));
    this.at.map = map;
    this.open(map, frame);
  }

  /** Open a tap in whatever map has it; false where none has. */
  goToTap(tap) {
    const has = (m) => m.frames.some((f) => f.tap === tap);
    const map = has(this.maps[this.at.map]) ? this.maps[this.at.map] : this.maps.find(has);
    if (map === undefined) return false;
    this.goTo(map.method, tap);
    this.root.scrollIntoView({ block: "start" });
    return true;
  }

  finder() {
    this.query = el("input", { type: "search", placeholder: "Search prompts", "aria-label": "Search prompts", spellcheck: "false" });
    this.regex = el("button", { type: "button", class: "wb-toggle", "aria-pressed": "false", title: "Regular expression" }, ".*");
    this.take = el("button", { type: "button", disabled: true, on: { click: (event) => this.takeMatches(event) } }, "Select matches");
    this.query.addEventListener("input", () => this.find());
    this.query.addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.takeMatches(event);
      if (event.key === "Escape") { this.query.value = ""; this.find(); }
    });
    this.regex.addEventListener("click", () => {
      this.regex.setAttribute("aria-pressed", String(this.regex.getAttribute("aria-pressed") !== "true"));
      this.find();
    });
    return el("div", { class: "wb-find" }, this.query, this.regex, this.take, this.message);
  }

  actions() {
    const tools = [["lasso", "Lasso"], ["rectangle", "Rectangle"], ["pan", "Pan"]].map(([tool, name]) => el("button", { type: "button", "data-tool": tool, "aria-pressed": String(tool === this.look.tool), on: { click: () => this.useTool(tool) } }, name));
    this.tools = tools;
    const zoom = (label, title, call) => el("button", { type: "button", title, "aria-label": title, on: { click: call } }, label);
    const first = () => this.panes[0];
    return el("div", { class: "wb-bar wb-actions" },
      el("div", { class: "wb-tabs", role: "group", "aria-label": "Pointer" }, tools),
      el("div", { class: "wb-tabs", role: "group", "aria-label": "Zoom" },
        zoom("−", "Zoom out", () => first().zoomAt(1 / 1.5, first().middle)), zoom("+", "Zoom in", () => first().zoomAt(1.5, first().middle)),
        zoom("Fit", "Show everything", () => first().camera.move(0, 0, 1))),
      el("div", { class: "wb-tabs", role: "group", "aria-label": "Selection" },
        el("button", { type: "button", on: { click: () => this.model.invert() } }, "Invert"), el("button", { type: "button", on: { click: () => this.model.clear() } }, "Clear")),
      this.movesButton(),
      this.shown,
      el("span", { class: "wb-keys" }, el("kbd", {}, "Shift"), " adds ", el("kbd", {}, "Alt"), " subtracts ", el("kbd", {}, "Esc"), " clears ", el("kbd", {}, "R"), el("kbd", {}, "L"), " draw by keyboard"));
  }

  /** Arrows from each selected row to its place in the other run; only where one fit serves both. */
  movesButton() {
    this.moves = el("button", { type: "button", "aria-pressed": "false", hidden: true }, "Arrows");
    this.moves.addEventListener("click", () => {
      this.moves.setAttribute("aria-pressed", String(this.moves.getAttribute("aria-pressed") !== "true"));
      this.placeMoves();
    });
    return this.moves;
  }

  placeMoves() {
    const { joint } = this.maps[this.at.map].frames[this.at.frame];
    this.moves.hidden = this.panes.length < 2;
    this.moves.disabled = !joint;
    this.moves.title = joint ? "From each selected row to its place in the other map" : "Each engine was fitted by itself: a distance between these maps means nothing";
    const on = joint && this.panes.length > 1 && this.moves.getAttribute("aria-pressed") === "true";
    for (const pane of this.panes) pane.moves = on ? { from: this.panes[0].xy, to: this.panes[1].xy } : null;
    this.redraw();
  }

  useTool(tool) {
    this.look.tool = tool;
    for (const button of this.tools) button.setAttribute("aria-pressed", String(button.dataset.tool === tool));
    for (const pane of this.panes) pane.over.dataset.tool = tool;
  }

  tablePanel() {
    const only = el("input", { type: "checkbox" });
    only.addEventListener("change", () => { this.table.onlySelected = only.checked; this.table.refresh(); });
    return el("div", { class: "wb-panel" }, el("div", { class: "wb-panel-head" }, el("h3", {}, "Rows"), this.table.status, el("label", {}, only, "selected only")), this.table.root);
  }

  // --- what is shown

  open(map, frame) {
    const { frames, method } = this.maps[map];
    if (this.at.map !== map) {
      const { tap } = this.maps[this.at.map].frames[this.at.frame];
      frame = Math.max(0, frames.findIndex((f) => f.tap === tap));
    }
    this.at = { map, frame };
    this.tabs.forEach((tab, i) => tab.setAttribute("aria-pressed", String(i === map)));
    this.layer.hidden = frames.length < 2;
    this.slider.max = frames.length - 1;
    this.slider.value = frame;
    this.tap.replaceChildren(say(frames[frame].tap));
    this.model.mapName = method;
    this.model.emit("place");
    this.quality.replaceChildren(frames[frame].note);
    this.mount(frames[frame], this.model.xy[map][frame], map);
  }

  /** Put coordinates into the panes; the panes themselves stay while only the tap changes, so that the frame does not jump. */
  mount(frame, xys, map) {
    const box = frame.joint ? extent(this.maps[map].fixed ? this.model.xy[map].flat() : xys) : null;
    if (this.panes && this.mounted === this.maps[map].method && this.panes.length === xys.length) {
      this.panes.forEach((pane, i) => pane.place(xys[i], box || extent([xys[i]]), frame.panes[i]));
      this.placeMoves();
      return;
    }
    this.mounted = this.maps[map].method;
    for (const pane of this.panes || []) pane.stop();
    let camera = null;
    this.panes = frame.panes.map((pane, i) => {
      if (camera === null || !frame.joint) camera = new Camera();
      const scatter = new Scatter(this.model, this.look, pane, xys[i], camera, box || extent([xys[i]]));
      scatter.index = i;
      scatter.over.dataset.tool = this.look.tool;
      return scatter;
    });
    this.stage.dataset.panes = this.panes.length;
    this.stage.replaceChildren(...this.panes.map((pane) => pane.root));
    this.placeMoves();
  }

  colourBy(index) {
    this.look.column = index >= 0 ? this.model.columns[index] : null;
    this.model.emit("place");
    this.colour.value = String(index);
    this.look.paint = paint(this.look.column, this.model.n, this.page.dark);
    this.legend.draw();
    this.reading.show(this.reading.row);
    this.redraw();
  }

  sizeBy(index) {
    this.look.size = index >= 0 && this.model.columns[index].kind === "number" ? this.model.columns[index] : null;
    this.look.sizes = sizes(this.look.size, this.model.n);
    this.size.value = String(this.look.size === null ? -1 : index);
    this.model.emit("place");
    this.legend.draw();
    this.redraw();
  }

  retheme(dark) {
    this.look.ink = INK[dark ? "dark" : "light"];
    this.look.font = getComputedStyle(this.page.root).fontFamily;
    this.look.paint = paint(this.look.column, this.model.n, dark);
    this.legend.draw();
    this.reading.show(this.reading.row);
    for (const pane of this.panes || []) if (pane.width) pane.draw();
  }

  stop() {
    for (const pane of this.panes) pane.stop();
    this.search.stop();
  }

  redraw() {
    for (const pane of this.panes || []) pane.schedule();
  }

  hovered(row) {
    for (const pane of this.panes) pane.drawOver();
    if (row < 0) this.reading.show(this.model.selected.indexOf(1)); // back to what is selected, so that its buttons can be reached
    else {
      this.reading.show(row);
      if (document.activeElement === this.table.scroller || this.panes.some((pane) => pane.over === document.activeElement)) this.announce(brief(this.model.text(row), 120) || "row without text");
    }
  }

  // --- search and selection

  async find() {
    const { value } = this.query;
    const serial = (this.serial = (this.serial || 0) + 1);
    this.message.replaceChildren();
    if (value === "") {
      this.model.setMatched(null);
      return;
    }
    try {
      const expression = this.regex.getAttribute("aria-pressed") === "true";
      const hits = expression ? await this.search.expression(value) : this.search.plain(value);
      if (serial === this.serial) this.model.setMatched(hits);
    } catch (error) {
      if (serial !== this.serial) return;
      this.model.setMatched(null);
      this.message.replaceChildren(say(error.message, 200));
      if (!this.search.canWork) this.regex.disabled = true;
    }
  }

  takeMatches(event) {
    if (this.model.matched === null) return;
    const rows = [];
    this.model.matched.forEach((hit, i) => { if (hit && this.model.drawn(i)) rows.push(i); });
    this.model.select(rows, howOf(event));
  }

  /** Say in words what is selected; a row that is hidden stays selected and is counted. */
  tell() {
    const { model } = this;
    let chosen = 0;
    let hidden = 0;
    for (let i = 0; i < model.n; i += 1) {
      if (!model.selected[i]) continue;
      chosen += 1;
      if (!model.drawn(i) || this.panes.every((pane) => !Number.isFinite(pane.xy[2 * i]))) hidden += 1;
    }
    const hits = model.matched === null ? 0 : model.matched.reduce((s, m) => s + m, 0);
    chosen += model.beyond;
    hidden += model.beyond;
    const words = chosen ? `${count(chosen)} selected${hidden ? `, ${count(hidden)} not drawn` : ""}` : "nothing selected";
    this.shown.replaceChildren(words);
    this.take.disabled = model.matched === null || hits === 0;
    this.take.replaceChildren(model.matched === null ? "Select matches" : `Select ${plural(hits, "match").replace("matchs", "matches")}`);
    this.announce(model.matched === null ? words : `${words}; ${plural(hits, "row")} found`);
    if (chosen > model.beyond && model.hover < 0) this.reading.show(model.selected.indexOf(1));
  }

  announce(words) {
    if (this.live.textContent !== words) this.live.replaceChildren(words);
  }
}
