// Colours. Classes: Okabe and Ito's eight, then marker shape as a second channel. Numbers: ramps that are even in OKLab.

const OKABE_ITO = ["#0072b2", "#d55e00", "#009e73", "#e69f00", "#56b4e9", "#cc79a7", "#f0e442", "#000000"];
const SHAPES = ["circle", "square", "triangle", "diamond"];
const MAX_CLASSES = OKABE_ITO.length * SHAPES.length - 1; // the last place is "other"
const LEVELS = 64;

/** sRGB text of an OKLCH colour (Ottosson 2020, the published matrices), clipped to the gamut. */
function oklch(L, C, degrees) {
  const a = C * Math.cos((degrees * Math.PI) / 180);
  const b = C * Math.sin((degrees * Math.PI) / 180);
  const l = (L + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (L - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (L - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
  const gamma = (x) => (x <= 0.0031308 ? 12.92 * x : 1.055 * x ** (1 / 2.4) - 0.055);
  const bytes = linear.map((x) => Math.round(255 * Math.min(1, Math.max(0, gamma(Math.max(0, x))))));
  return "#" + bytes.map((x) => x.toString(16).padStart(2, "0")).join("");
}

const between = (a, b, t) => a + (b - a) * t;

/** `LEVELS` colours from least to most: more is further from the paper, so that high values never fade into it. */
function sequential(dark) {
  const [from, to] = dark ? [[0.36, 0.09, 285], [0.93, 0.13, 100]] : [[0.89, 0.11, 100], [0.31, 0.13, 285]];
  return Array.from({ length: LEVELS }, (_, i) => {
    const t = i / (LEVELS - 1);
    const bend = 0.04 * Math.sin(Math.PI * t); // more chroma half way, where hue has to carry the reading
    return oklch(between(from[0], to[0], t), between(from[1], to[1], t) + bend, between(from[2], to[2], t));
  });
}

/** `LEVELS` colours around a neutral middle: blue below, vermilion above, equal lightness on both sides. */
function diverging(dark) {
  const middle = dark ? 0.42 : 0.88;
  const end = dark ? 0.82 : 0.46;
  return Array.from({ length: LEVELS }, (_, i) => {
    const t = (2 * i) / (LEVELS - 1) - 1;
    return oklch(between(middle, end, Math.abs(t)), 0.005 + 0.14 * Math.abs(t), t < 0 ? 250 : 45);
  });
}

/** Colour and shape of class `code`; the last style is "other", then "no value". */
function classStyle(code, dark) {
  const hex = OKABE_ITO[code % OKABE_ITO.length];
  return { fill: hex === "#000000" && dark ? "#e8e8e8" : hex, shape: SHAPES[Math.floor(code / OKABE_ITO.length)] };
}

const OTHER = { fill: "#8a8f98", shape: "circle" };

/** How one column is painted: a style code for each row, the styles, and what the legend says. */
function paint(column, n, dark) {
  if (column === null) return { codes: new Uint8Array(n), styles: [{ fill: dark ? "#7fb6e6" : "#2f6fb0", shape: "circle" }], kind: "none" };
  return column.kind === "number" ? paintNumbers(column, n, dark) : paintClasses(column, n, dark);
}

function paintNumbers(column, n, dark) {
  const { low, high, signed, log } = column.range;
  const ramp = signed ? diverging(dark) : sequential(dark);
  const styles = [...ramp.map((fill) => ({ fill, shape: "circle" })), OTHER];
  const codes = new Uint8Array(n);
  const on = log ? (v) => Math.log10(Math.max(v, low)) : (v) => v;
  const from = on(low);
  const span = on(high) - from || 1;
  for (let i = 0; i < n; i += 1) {
    const t = (on(column.at(i)) - from) / span;
    codes[i] = Number.isNaN(t) ? LEVELS : Math.min(LEVELS - 1, Math.max(0, Math.floor(t * LEVELS)));
  }
  return { codes, styles, kind: "number", ramp, low, high, signed };
}

function paintClasses(column, n, dark) {
  const shown = Math.min(column.order.length, column.order.length > MAX_CLASSES + 1 ? MAX_CLASSES : MAX_CLASSES + 1);
  const styles = Array.from({ length: shown }, (_, i) => classStyle(i, dark));
  styles.push(OTHER);
  const styleOf = new Uint8Array(column.labels.length).fill(shown);
  column.order.slice(0, shown).forEach((label, i) => { styleOf[label] = i; });
  const codes = new Uint8Array(n);
  for (let i = 0; i < n; i += 1) {
    const code = column.at(i);
    codes[i] = code === column.missing ? shown : styleOf[code];
  }
  return { codes, styles, kind: "category", shown };
}

const SIZES = [0.55, 0.8, 1.1, 1.45, 1.85, 2.3]; // times the radius, from the smallest value of a column to its largest
const WIDE = 1000; // positive numbers whose ends lie so many times apart are spread by their logarithm

/** Where numbers of a column lie between its ends, as a share, and the number at a share. */
function spreadOf({ low, high, log }) {
  const wide = log || (low > 0 && high / low >= WIDE);
  const on = wide ? (v) => Math.log10(Math.max(v, low)) : (v) => v;
  const [from, span] = [on(low), on(high) - on(low) || 1];
  return { wide, share: (v) => (on(v) - from) / span, at: (t) => (wide ? 10 ** (from + t * span) : from + t * span) };
}

/** A size code for each row; a row without a number is drawn smallest. */
function sizes(column, n) {
  if (column === null) return null;
  const { share } = spreadOf(column.range);
  const codes = new Uint8Array(n);
  for (let i = 0; i < n; i += 1) {
    const t = share(column.at(i));
    codes[i] = Number.isNaN(t) ? 0 : Math.min(SIZES.length - 1, Math.max(0, Math.floor(t * SIZES.length)));
  }
  return codes;
}

const SPRITES = new Map();

/** A marker drawn once and stamped many times; `edge` keeps light fills visible on light paper. */
function sprite({ fill, shape }, radius, ratio, edge) {
  const key = `${fill} ${shape} ${radius} ${ratio} ${edge}`;
  if (!SPRITES.has(key)) {
    if (SPRITES.size > 2000) SPRITES.clear();
    const side = Math.ceil((2 * radius + 3) * ratio);
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = side;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    trace(pen, shape, side / ratio / 2, side / ratio / 2, radius);
    pen.fillStyle = fill;
    pen.fill();
    pen.lineWidth = 0.6;
    pen.strokeStyle = edge;
    pen.stroke();
    SPRITES.set(key, canvas);
  }
  return SPRITES.get(key);
}

function trace(pen, shape, x, y, r) {
  pen.beginPath();
  if (shape === "circle") pen.arc(x, y, r, 0, 2 * Math.PI);
  else if (shape === "square") pen.rect(x - 0.9 * r, y - 0.9 * r, 1.8 * r, 1.8 * r);
  else {
    const corners = shape === "triangle" ? [[0, -1.15], [1.05, 0.8], [-1.05, 0.8]] : [[0, -1.25], [1.1, 0], [0, 1.25], [-1.1, 0]];
    corners.forEach(([dx, dy], i) => (i ? pen.lineTo(x + dx * r, y + dy * r) : pen.moveTo(x + dx * r, y + dy * r)));
    pen.closePath();
  }
}
