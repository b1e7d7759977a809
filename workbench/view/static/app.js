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
    this.ended = new AbortController(); // what is heard outside the page's own nodes ends with it
    const { signal } = this.ended;
    for (const query of [this.system, this.print]) query.addEventListener("change", () => this.apply(), { signal });
    window.addEventListener("beforeprint", () => this.apply(true), { signal });
    window.addEventListener("afterprint", () => this.apply(), { signal });
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
    this.ended.abort();
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

function factList(facts) {
  return el("dl", { class: "wb-facts" }, facts.map(({ label, value, note }) => el("div", {}, el("dt", {}, say(label)), el("dd", {}, say(value)), note ? el("dd", { class: "wb-soft" }, say(note)) : null)));
}

function heading(doc, page) {
  return el("header", { class: "wb-head" },
    el("div", { class: "wb-eyebrow" }, el("span", {}, doc.title === doc.headline ? plural(doc.views.length, "view") : say(doc.title, 300)), doc.redacted ? el("span", { class: "wb-badge", "data-badge": "redacted" }, "redacted") : null, el("span", { class: "wb-grow" }), el("span", {}, doc.date), page.toggle()),
    el("h1", {}, say(doc.headline, 600)),
    doc.redacted ? el("p", { class: "wb-verdict" }, doc.redacted) : null,
    doc.facts.length ? factList(doc.facts) : null);
}

/** One view of a page: its maps, if it has runs, and its sections. */
function viewOf(doc, blocks, page) {
  const nodes = [];
  let explorer = null;
  if (doc.maps.length) {
    explorer = new Explorer(new Model(doc, blocks), page);
    nodes.push(el("section", { class: "wb-section wb-first" }, el("h2", {}, say(doc.mapTitle)), doc.mapLead ? el("p", { class: "wb-lead" }, say(doc.mapLead)) : null, explorer.root));
  }
  return [...nodes, ...doc.sections.map((part) => SECTIONS[part.type](part, explorer))];
}

/** A view among several: its finding stands above it, and the list at the head of the page leads to it. */
function chapter(doc, number, blocks, page) {
  const head = el("h2", { class: "wb-view-head", tabindex: "-1" }, `${number}. `, say(doc.headline, 600));
  const facts = doc.facts.length ? factList(doc.facts) : null;
  return el("article", { class: "wb-view" }, head, facts, viewOf(doc, blocks, page));
}

function contents(views, chapters) {
  const go = (k) => { const head = chapters[k].firstElementChild; head.scrollIntoView({ block: "start" }); head.focus({ preventScroll: true }); };
  return el("nav", { "aria-label": "Views on this page" }, el("ol", { class: "wb-contents" }, views.map((doc, k) => el("li", {}, el("button", { type: "button", class: "wb-link", on: { click: () => go(k) } }, say(doc.headline, 400))))));
}

/** Build a whole report inside `root`. */
function build(root, themed, doc, blocks) {
  const page = new Page(root, themed);
  const main = el("main", {}, heading(doc, page));
  if (doc.views.length === 1) main.append(...viewOf(doc.views[0], blocks, page));
  else {
    const chapters = doc.views.map((view, k) => chapter(view, k + 1, blocks, page));
    main.append(contents(doc.views, chapters), ...chapters);
  }
  root.replaceChildren(main);
  root.dataset.ready = "true";
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
