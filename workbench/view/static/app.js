// The page: theme, head, sections. The last lines start a report; a notebook calls `render` of the default export.

class Page {
  constructor(root, themed) {
    this.root = root;
    this.themed = themed;
    this.choice = "auto";
    this.system = matchMedia("(prefers-color-scheme: dark)");
    this.watch = new MutationObserver(() => this.apply());
    this.watch.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light"] });
    this.print = matchMedia("print");
    this.listeners = [];
    for (const query of [this.system, this.print]) query.addEventListener("change", () => this.apply());
    window.addEventListener("beforeprint", () => this.apply(true));
    window.addEventListener("afterprint", () => this.apply());
    this.apply();
  }

  apply(printing = this.print.matches) {
    const dark = printing ? false : this.choice === "auto" ? this.systemDark() : this.choice === "dark";
    this.themed.dataset.theme = dark ? "dark" : "light";
    if (dark === this.dark) return;
    this.dark = dark;
    for (const call of this.listeners) call(dark);
  }

  /** JupyterLab says on the body which theme it shows; elsewhere the system decides. */
  systemDark() {
    const lab = document.body.dataset.jpThemeLight;
    return lab === undefined ? this.system.matches : lab === "false";
  }

  onTheme(call) {
    this.listeners.push(call);
    call(this.dark);
  }

  stop() {
    this.watch.disconnect();
    this.listeners = [];
  }

  toggle() {
    const order = ["auto", "light", "dark"];
    const button = el("button", { type: "button", class: "wb-theme" }, "Theme: auto");
    button.addEventListener("click", () => {
      this.choice = order[(order.indexOf(this.choice) + 1) % 3];
      button.replaceChildren(`Theme: ${this.choice}`);
      this.apply();
    });
    return button;
  }
}

function heading(doc, page) {
  const facts = el("dl", { class: "wb-facts" }, doc.facts.map(({ label, value, note }) => el("div", {}, el("dt", {}, say(label)), el("dd", {}, say(value)), note ? el("dd", { class: "wb-soft" }, say(note)) : null)));
  return el("header", { class: "wb-head" },
    el("div", { class: "wb-eyebrow" }, el("span", {}, say(doc.title, 300)), doc.redacted ? el("span", { class: "wb-badge", "data-badge": "redacted" }, "redacted") : null, el("span", { class: "wb-grow" }), el("span", {}, doc.date), page.toggle()),
    el("h1", {}, say(doc.headline, 600)),
    doc.redacted ? el("p", { class: "wb-verdict" }, doc.redacted) : null,
    facts);
}

/** Build a whole report inside `root`. */
function build(root, themed, doc, blocks) {
  const page = new Page(root, themed);
  const model = new Model(doc, blocks);
  const main = el("main", {}, heading(doc, page));
  let explorer = null;
  if (doc.maps.length) {
    explorer = new Explorer(model, page);
    main.append(el("section", { class: "wb-section wb-first" }, el("h2", {}, say(doc.mapTitle)), doc.mapLead ? el("p", { class: "wb-lead" }, say(doc.mapLead)) : null, explorer.root));
  }
  for (const part of doc.sections) main.append(SECTIONS[part.type](part, explorer));
  root.replaceChildren(main);
  root.dataset.ready = "true";
  return { model, explorer, page };
}

function failed(root, error) {
  root.replaceChildren(el("main", {}, el("h1", {}, "This page could not be drawn"), el("p", { role: "alert" }, say(String(error.message || error)))));
  root.dataset.ready = "failed";
}

async function start() {
  const root = document.getElementById("wb-root");
  try {
    const doc = JSON.parse(document.getElementById("wb-doc").textContent);
    const buffer = bytesOfBase64(document.getElementById("wb-bytes").textContent.trim());
    build(root, document.documentElement, doc, await unpack(doc.blocks, buffer));
  } catch (error) {
    failed(root, error);
  }
}

if (document.documentElement.dataset.workbench === "report") start();

export default { render };
