// Parts of one ES module: `workbench.view.static_files` joins them in order. Text from data enters the page only through
// text nodes (`el`, `say`): no markup is ever parsed from a string.

const SVG = "http://www.w3.org/2000/svg";

/** A DOM element; strings among the children become text nodes. */
function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "class") node.className = value;
    else if (key === "on") for (const [name, call] of Object.entries(value)) node.addEventListener(name, call);
    else node.setAttribute(key, value === true ? "" : String(value));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** An SVG element; presentation attributes only, so that the page needs no style attribute. */
function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, String(value));
  node.append(...children);
  return node;
}

/** The first `limit` characters, marked where something follows. */
const head = (text, limit) => (text.length > limit ? text.slice(0, limit) + "…" : text);

/** Untrusted text, isolated so that its direction cannot spill into its neighbours; characters are kept as they are. */
function say(text, cut = Infinity) {
  return el("bdi", {}, head(text, cut));
}

const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

/** Control, bidi and lone-surrogate characters as visible escapes. */
function reveal(text) {
  return text.replace(HIDDEN, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
}

/** At most `limit` characters, controls visible: for hovers. */
const brief = (text, limit = 200) => reveal(head(text, limit));

const GROUPED = new Intl.NumberFormat("en-US");
const count = (n) => GROUPED.format(n);
const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;

/** A number to three figures, without exponents where a reader would not expect one. */
function figure(x, digits = 3) {
  if (x === null || x === undefined) return "–";
  if (typeof x !== "number") return String(x);
  if (Number.isNaN(x)) return "NaN";
  if (!Number.isFinite(x)) return x > 0 ? "∞" : "−∞";
  if (Number.isInteger(x) && Math.abs(x) < 1e15) return count(x).replace("-", "−");
  const size = Math.abs(x);
  const text = size >= 1e6 || size < 1e-3 ? power(x) : String(Number(x.toPrecision(digits)));
  return text.replace(/^-/, "−");
}

const RAISED = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };

function power(x) {
  const [head, tail] = x.toExponential(1).split("e");
  return `${head} × 10${[...String(Number(tail))].map((c) => RAISED[c]).join("")}`;
}
