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

class Live {
  constructor(remote, host) {
    this.remote = remote;
    this.host = host;
    this.calls = [];
    this.status = el("div", { class: "wb-status", role: "status", hidden: true });
    this.note = el("div", { class: "wb-status wb-note", hidden: true });
    this.sections = el("div", { class: "wb-live-sections" });
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
    this.explorer.remote = { neighbours: (row) => remote.send({ kind: "neighbours", row: this.model.rowId(row) }) };
    const title = el("div", { class: "wb-live-head" }, el("h3", {}, say(doc.mapTitle)), doc.mapLead ? el("span", { class: "wb-soft" }, say(doc.mapLead)) : null, el("span", { class: "wb-grow" }), el("button", { type: "button", on: { click: () => remote.send({ kind: "export" }) } }, "Write report"));
    host.replaceChildren(title, this.status, this.note, this.explorer.root, this.sections);
    this.toBrowser();
    this.toPython();
    this.takePlace(remote.get("place"));
    this.model.beyond = remote.get("beyond");
    this.model.assign(unpackMask(bytesOf(remote.get("bits")), this.model.n));
    this.showStatus();
    this.showSections();
    this.hideTwin();
    host.dataset.ready = "true";
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
      this.showSections();
    });
    this.listen("change:beyond", () => { model.beyond = remote.get("beyond"); this.explorer.tell(); });
    this.listen("change:place", () => { if (!this.telling) this.takePlace(remote.get("place")); });
    this.listen("change:status", () => this.showStatus());
    this.listen("change:sections", () => this.showSections());
    this.listen("msg:custom", (message) => {
      if (message.kind === "error" || message.kind === "note") this.say(message.kind, message.text);
    });
  }

  toPython() {
    const { remote, model } = this;
    model.on("selection", (from) => {
      if (from !== "user") return;
      this.tell(() => remote.set("bits", new DataView(packMask(model.selected).buffer)));
    });
    model.on("names", () => this.tell(() => remote.set("names", Object.fromEntries(model.names))));
    let timer = 0;
    const rest = () => {
      clearTimeout(timer);
      timer = setTimeout(() => this.tell(() => remote.set("place", this.place())), SETTLE_MS);
    };
    model.on("place", rest);
    this.host.addEventListener("wheel", rest, { passive: true });
    this.host.addEventListener("pointerup", rest);
    this.host.addEventListener("keyup", rest);
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
    const camera = explorer.panes[0].camera;
    return { method: map.method, tap: map.frames[explorer.at.frame].tap, colour: explorer.look.column === null ? null : explorer.look.column.name, camera: [camera.x, camera.y, camera.zoom] };
  }

  takePlace(place) {
    const { explorer, model } = this;
    if (place.method) explorer.goTo(place.method, place.tap);
    if (place.colour !== undefined) explorer.colourBy(model.columns.findIndex((column) => column.name === place.colour));
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
    for (const [event, call] of this.calls) this.remote.off(event, call);
    if (this.page !== undefined) this.page.stop();
    if (this.twins !== undefined) this.twins.disconnect();
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
