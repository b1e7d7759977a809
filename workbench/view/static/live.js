// A view in a notebook: the same explorer, with its selection, place and maps kept in step with Python.
// Hover and selection cross from map to map here, without the kernel; Python is told afterwards.

const SETTLE_MS = 250; // how long a place must rest before it is told

/** A mask as bits, the first row in the lowest bit; and back. */
function packMask(mask) {
  const bits = new Uint8Array(Math.ceil(mask.length / 8));
  for (let i = 0; i < mask.length; i += 1) if (mask[i]) bits[i >> 3] |= 1 << (i & 7);
  return bits;
}

function unpackMask(bits, n) {
  const mask = new Uint8Array(n);
  for (let i = 0; i < n; i += 1) mask[i] = (bits[i >> 3] >> (i & 7)) & 1;
  return mask;
}

const bytesOf = (view) => (view === null || view === undefined ? new Uint8Array() : new Uint8Array(view.buffer, view.byteOffset, view.byteLength));

const LIVE = Symbol.for("workbench live views");
const MOST_LIVE = 4; // on one page; the oldest turns into its picture

/** The live views of this page, oldest first; each widget has its own copy of this script, so the page holds the list. */
function liveViews() {
  if (globalThis[LIVE] === undefined) globalThis[LIVE] = [];
  return globalThis[LIVE];
}

class Live {
  constructor(remote, host) {
    this.remote = remote;
    this.host = host;
    this.calls = [];
    this.status = el("div", { class: "wb-status", role: "status", hidden: true });
    this.note = el("div", { class: "wb-status wb-note", hidden: true });
    this.sections = el("div", { class: "wb-live-sections" });
    host.dataset.lmSuppressShortcuts = "true"; // keys of a map are not commands of the notebook
  }

  async start() {
    const { remote, host } = this;
    const doc = remote.get("doc");
    const blocks = await unpack(doc.blocks, bytesOf(remote.get("buffer")));
    this.model = new Model({ ...doc, maps: [] }, blocks);
    await this.takeMaps();
    for (const [name, rows] of Object.entries(remote.get("names"))) this.model.names.set(name, rows);
    this.page = new Page(host, host);
    this.explorer = new Explorer(this.model, this.page);
    this.explorer.reading.asker = (row) => remote.send({ kind: "neighbours", row: this.model.rowId(row) });
    this.explorer.exchange.asker = (first, second) => remote.send({ kind: "probe", first, second });
    this.explorer.exchange.offerProbe();
    host.replaceChildren(this.head(doc), this.status, this.note, this.explorer.root, this.sections);
    this.toBrowser();
    this.toPython();
    this.takePlace(remote.get("place"));
    this.model.beyond = remote.get("beyond");
    this.model.assign(unpackMask(bytesOf(remote.get("bits")), this.model.n));
    this.showStatus();
    this.showSections();
    this.hideTwin();
    host.dataset.ready = "true";
    requestAnimationFrame(() => requestAnimationFrame(() => remote.send({ kind: "drawn" })));
    liveViews().push(this);
    while (liveViews().length > MOST_LIVE) liveViews()[0].rest();
  }

  head(doc) {
    this.lead = el("span", { class: "wb-soft" });
    this.beside = el("button", { type: "button", on: { click: () => this.remote.send({ kind: "siblings" }) } }, "Compare with…");
    this.showLead();
    return el("div", { class: "wb-live-head" }, el("h3", {}, say(doc.mapTitle)), this.lead, el("span", { class: "wb-grow" }), this.beside, el("button", { type: "button", on: { click: () => this.remote.send({ kind: "export" }) } }, "Write report"));
  }

  showLead() {
    const { lead } = this.remote.get("maps");
    this.lead.replaceChildren(lead ? say(lead) : "");
    this.beside.hidden = this.model.maps.some((map) => map.frames.some((frame) => frame.panes.length > 1));
  }

  /** Offer the runs that this one can be compared with. */
  offerSiblings(runs) {
    const button = ({ name, title }) => el("button", { type: "button", title: reveal(title), on: { click: () => { this.note.hidden = true; this.remote.send({ kind: "beside", name }); } } }, say(name, 60), " ", el("span", { class: "wb-soft" }, say(title, 60)));
    const close = el("button", { type: "button", on: { click: () => { this.note.hidden = true; } } }, "Close");
    this.note.hidden = false;
    this.note.setAttribute("role", "group");
    this.note.replaceChildren(runs.length ? "Open beside this run: " : "No finished run of the same prompts lies beside this one.", ...runs.map(button), close);
    (this.note.querySelector("button") || close).focus();
  }

  /** Give way to a younger view: what was on screen stays as a picture that a click makes live again. */
  rest() {
    const pictures = this.explorer.panes.map((pane) => el("img", { src: pane.picture(), alt: reveal(`${this.remote.get("doc").mapTitle}: ${pane.title}`) }));
    this.stop();
    const wake = async () => {
      await this.start();
      this.explorer.panes[0].over.focus({ preventScroll: true });
    };
    const shown = el("div", { class: "wb-maps", "data-panes": pictures.length }, pictures);
    shown.addEventListener("click", wake);
    const why = `A picture: ${MOST_LIVE} younger views on this page are live.`;
    this.host.replaceChildren(el("div", { class: "wb-live-head" }, el("h3", {}, say(this.remote.get("doc").mapTitle)), el("span", { class: "wb-soft" }, why), el("span", { class: "wb-grow" }), el("button", { type: "button", on: { click: wake } }, "Make live")), shown);
    this.host.dataset.ready = "picture";
  }

  async takeMaps() {
    const { maps, columns, blocks } = this.remote.get("maps");
    const read = await unpack(blocks, bytesOf(this.remote.get("map_buffer")));
    this.model.setMaps(maps, read);
    this.model.addColumns(columns, read);
  }

  listen(event, call) {
    this.remote.on(event, call);
    this.calls.push([event, call]);
  }

  toBrowser() {
    const { remote, model } = this;
    this.listen("change:bits", () => {
      if (!this.telling) model.assign(unpackMask(bytesOf(remote.get("bits")), model.n));
    });
    this.listen("change:maps", async () => {
      await this.takeMaps();
      this.explorer.renewColumns();
      this.explorer.renewMaps();
      this.showLead();
      this.showSections();
    });
    this.listen("change:names", () => {
      if (this.telling) return;
      model.names = new Map(Object.entries(remote.get("names")));
      model.emit("names", "outside");
    });
    this.listen("change:beyond", () => { model.beyond = remote.get("beyond"); this.explorer.tell(); });
    this.listen("change:place", () => { if (!this.telling) this.takePlace(remote.get("place")); });
    this.listen("change:status", () => this.showStatus());
    this.listen("change:sections", () => this.showSections());
    this.listen("msg:custom", (message) => {
      if (message.kind === "error" || message.kind === "note") this.say(message.kind, message.text);
      if (message.kind === "siblings") this.offerSiblings(message.runs);
    });
  }

  toPython() {
    const { remote, model } = this;
    model.on("selection", (from) => {
      if (from !== "user") return;
      this.tell(() => remote.set("bits", new DataView(packMask(model.selected).buffer)));
    });
    model.on("names", (from) => { if (from === "user") this.tell(() => remote.set("names", Object.fromEntries(model.names))); });
    let timer = 0;
    const rest = () => {
      clearTimeout(timer);
      timer = setTimeout(() => { if (liveViews().includes(this)) this.tell(() => remote.set("place", this.place())); }, SETTLE_MS);
    };
    model.on("place", rest);
    model.on("filter", rest);
    this.quiet = new AbortController();
    const { signal } = this.quiet;
    this.host.addEventListener("wheel", rest, { passive: true, signal });
    this.host.addEventListener("pointerup", rest, { signal });
    this.host.addEventListener("keyup", rest, { signal });
  }

  /** Set traits without hearing our own echo. */
  tell(change) {
    this.telling = true;
    change();
    this.remote.save_changes();
    this.telling = false;
  }

  place() {
    const { explorer } = this;
    const map = explorer.maps[explorer.at.map];
    const { camera } = explorer.panes[0];
    const name = (column) => (column === null ? null : column.name);
    return { method: map.method, tap: map.frames[explorer.at.frame].tap, colour: name(explorer.look.column), size: name(explorer.look.size), camera: [camera.x, camera.y, camera.zoom], filters: this.model.filterState() };
  }

  takePlace(place) {
    const { explorer, model } = this;
    if (place.method) explorer.goTo(place.method, place.tap);
    // a column that is still to be computed is not there yet: what is shown stays
    const at = (name) => model.columns.findIndex((column) => column.name === name);
    if (place.colour === null || at(place.colour) >= 0) explorer.colourBy(at(place.colour));
    if (place.size === null || at(place.size) >= 0) explorer.sizeBy(at(place.size));
    if (place.filters !== undefined) model.takeFilters(place.filters);
    if (place.camera) explorer.panes[0].camera.move(...place.camera);
  }

  showStatus() {
    const { text, done, total, running } = this.remote.get("status");
    this.status.hidden = !text;
    if (!text) return;
    const share = total ? ` ${Math.round((100 * done) / total)} %` : "";
    const meter = running ? el("progress", { max: total || null, value: total ? done : null, "aria-label": "progress" }) : null;
    const cancel = running ? el("button", { type: "button", on: { click: () => this.remote.send({ kind: "cancel" }) } }, "Cancel") : null;
    this.status.replaceChildren(say(text, 300), running ? share : "", ...[meter, cancel].filter(Boolean));
  }

  /** Say what happened; it stays while progress goes on beside it. */
  say(kind, text) {
    this.note.hidden = false;
    this.note.setAttribute("role", kind === "error" ? "alert" : "status");
    this.note.replaceChildren(say(text, 300), el("button", { type: "button", on: { click: () => { this.note.hidden = true; } } }, "Close"));
  }

  showSections() {
    this.sections.replaceChildren(...this.remote.get("sections").map((part) => SECTIONS[part.type](part, this.explorer)));
  }

  /** The picture that stands below a live view is for readers without a kernel. */
  hideTwin() {
    const area = this.host.closest(".jp-OutputArea");
    if (area === null) return;
    const hide = () => {
      for (const figure of area.querySelectorAll(`.wb-twin-${this.remote.get("doc").view}`)) {
        const child = figure.closest(".jp-OutputArea-child");
        if (child !== null && !child.contains(this.host)) child.style.display = "none";
      }
    };
    hide();
    this.twins = new MutationObserver(hide); // the picture is an output of its own and may come later
    this.twins.observe(area, { childList: true, subtree: true });
  }

  stop() {
    const at = liveViews().indexOf(this);
    if (at >= 0) liveViews().splice(at, 1);
    for (const [event, call] of this.calls) this.remote.off(event, call);
    this.calls = [];
    if (this.page !== undefined) this.page.stop();
    if (this.explorer !== undefined) this.explorer.stop();
    if (this.twins !== undefined) this.twins.disconnect();
    if (this.quiet !== undefined) this.quiet.abort();
  }
}

async function render({ model, el: host }) {
  host.classList.add("wb", "wb-widget");
  const live = new Live(model, host);
  try {
    await live.start();
  } catch (error) {
    failed(host, error);
  }
  return () => live.stop();
}
