// Small charts in SVG. Lines carry classes, so that the style sheet gives them their colours in light, dark and print.

/** Draw again whenever the host changes its width. */
function chart(host, label, draw) {
  const box = el("div", { class: "wb-chart", role: "img", "aria-label": reveal(label) });
  let width = 0;
  new ResizeObserver(() => {
    const next = box.clientWidth;
    if (next > 0 && next !== width) {
      width = next;
      box.replaceChildren(draw(width));
    }
  }).observe(box);
  host.append(box);
  return box;
}

function words(x, y, text, attributes = {}) {
  const node = svg("text", { x, y, ...attributes });
  node.append(text);
  return node;
}

/** Clip text to about `room` pixels of 12 px type. */
function clip(text, room) {
  const fits = Math.max(3, Math.floor(room / 6.4));
  const shown = reveal(text);
  return shown.length > fits ? shown.slice(0, fits - 1) + "…" : shown;
}

/** Score of each probe with its folds, against the range that shuffled labels give. */
function scoreChart(entries) {
  return (width) => {
    const left = Math.min(width * 0.42, 230);
    const right = 52;
    const step = 34;
    const height = entries.length * step + 34;
    const all = entries.flatMap((e) => [e.score, ...(e.folds || []), ...(e.control || []), ...(e.interval || []), e.baseline ?? 0]).filter(Number.isFinite);
    const low = Math.min(0, ...all);
    const high = Math.max(...all, 0.1) > 0.85 ? 1 : Math.max(...all, 0.1) * 1.12;
    const x = (v) => left + ((Math.max(low, v) - low) / (high - low)) * (width - left - right);
    const box = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height });
    for (const tick of ticks(low, high, width / 120)) {
      box.append(svg("line", { class: "wb-c-grid", x1: x(tick), x2: x(tick), y1: 4, y2: height - 28 }), words(x(tick), height - 12, figure(tick), { class: "wb-c-soft", "text-anchor": "middle" }));
    }
    entries.forEach((entry, i) => {
      const y = 4 + step * i + step / 2;
      box.append(words(0, y - 2, clip(entry.label, left - 12), { class: "wb-c-text" }));
      if (entry.note) box.append(words(0, y + 11, clip(entry.note, left - 12), { class: "wb-c-small" }));
      const [from, middle, to] = entry.control || [];
      if (Number.isFinite(from)) box.append(svg("rect", { class: "wb-c-band", x: x(from) - 1, y: y - 9, width: Math.max(2, x(to) - x(from)) + 2, height: 18, rx: 2 }), svg("line", { class: "wb-c-middle", x1: x(middle), x2: x(middle), y1: y - 9, y2: y + 9 }));
      if (Number.isFinite(entry.baseline)) box.append(svg("line", { class: "wb-c-base", x1: x(entry.baseline), x2: x(entry.baseline), y1: y - 11, y2: y + 11 }));
      const folds = (entry.folds || []).filter(Number.isFinite);
      if (folds.length) box.append(svg("line", { class: "wb-c-whisker", x1: x(Math.min(...folds)), x2: x(Math.max(...folds)), y1: y, y2: y }));
      else if (entry.interval) box.append(svg("line", { class: "wb-c-whisker", x1: x(entry.interval[0]), x2: x(entry.interval[1]), y1: y, y2: y }));
      for (const fold of folds) box.append(svg("circle", { class: "wb-c-fold", cx: x(fold), cy: y, r: 3 }));
      if (Number.isFinite(entry.score)) box.append(svg("circle", { class: "wb-c-dot", cx: x(entry.score), cy: y, r: 5.5 }));
      box.append(words(width - right + 8, y + 4, figure(entry.score, 2), { class: "wb-c-value" }));
    });
    return box;
  };
}

/** Mean and worst error of each tap on a logarithmic axis, with the floor where it was measured. */
function errorChart(entries) {
  return (width) => {
    const left = Math.min(width * 0.38, 190);
    const right = 14;
    const step = 30;
    const height = entries.length * step + 34;
    const all = entries.flatMap((e) => [e.mean, e.worst, e.floor]).filter((v) => v > 0);
    const low = Math.floor(Math.log10(Math.min(...all, 1)) - 0.05);
    const high = Math.max(low + 1, Math.ceil(Math.log10(Math.max(...all, 1e-12)) + 0.05));
    const x = (v) => left + ((Math.log10(Math.max(v, 10 ** low)) - low) / (high - low)) * (width - left - right);
    const box = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height });
    const every = Math.ceil((high - low) / Math.max(2, Math.floor((width - left) / 70)));
    for (let p = low; p <= high; p += every) {
      box.append(svg("line", { class: "wb-c-grid", x1: x(10 ** p), x2: x(10 ** p), y1: 4, y2: height - 28 }), words(x(10 ** p), height - 12, p === 0 ? "1" : `10${[...String(p)].map((c) => RAISED[c]).join("")}`, { class: "wb-c-soft", "text-anchor": "middle" }));
    }
    entries.forEach((entry, i) => {
      const y = 4 + step * i + step / 2;
      box.append(words(0, y + 4, clip(entry.label, left - 12), { class: "wb-c-text" }));
      if (entry.floor > 0) box.append(svg("rect", { class: "wb-c-band", x: left, y: y - 9, width: Math.max(2, x(entry.floor) - left), height: 18 }), svg("line", { class: "wb-c-middle", x1: x(entry.floor), x2: x(entry.floor), y1: y - 9, y2: y + 9 }));
      if (entry.mean > 0 && entry.worst > 0) box.append(svg("line", { class: "wb-c-whisker", x1: x(entry.mean), x2: x(entry.worst), y1: y, y2: y }));
      if (entry.mean > 0) box.append(svg("circle", { class: "wb-c-dot", cx: x(entry.mean), cy: y, r: 5.5 }));
      else if (entry.mean === 0 && entry.worst === 0) box.append(words(left + 6, y + 4, "0: the same bits", { class: "wb-c-soft" }));
      if (entry.worst > 0) box.append(svg("path", { class: "wb-c-worst", d: `M${x(entry.worst)} ${y - 6} l6 6 l-6 6 l-6 -6 z` }));
    });
    return box;
  };
}

/** Measures by tap, one band each, from the first tap to the last; a tap is a button where its maps can be opened. */
function ribbonChart(taps, bands, open) {
  return (width) => {
    const left = Math.min(width * 0.3, 150);
    const room = width - left - 30;
    const tall = 58;
    const x = (i) => left + 14 + (taps.length === 1 ? room / 2 : (i / (taps.length - 1)) * (room - 28));
    const height = bands.length * tall + 26;
    const box = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height });
    bands.forEach((band, k) => {
      const known = band.values.filter(Number.isFinite);
      const all = [...known, ...(band.floors || []).filter(Number.isFinite)];
      const low = Math.min(...all);
      const high = Math.max(...all);
      const span = high - low || 1;
      const y = (v) => k * tall + 12 + (1 - (v - low) / span) * (tall - 26);
      box.append(words(0, k * tall + 26, clip(band.name, left - 8), { class: "wb-c-text" }));
      if (known.length) box.append(words(0, k * tall + 41, low === high ? figure(low, 4) : `${figure(low, 4)} to ${figure(high, 4)}`, { class: "wb-c-small" }));
      const points = (values) => values.map((v, i) => (Number.isFinite(v) ? `${x(i)},${y(v)}` : null)).filter(Boolean).join(" ");
      if (band.floors) box.append(svg("polyline", { class: "wb-c-floor", points: points(band.floors) }));
      box.append(svg("polyline", { class: "wb-c-line", points: points(band.values) }));
      band.values.forEach((v, i) => { if (Number.isFinite(v)) box.append(svg("circle", { class: "wb-c-dot", cx: x(i), cy: y(v), r: 4 })); });
    });
    const every = Math.ceil(taps.length / Math.max(1, Math.floor(room / 150)));
    const last = taps.length - 1;
    const names = taps.map((tap) => clip(tap, 140));
    const half = (i) => 3.1 * names[i].length;
    const middle = (i) => Math.min(x(i), width - half(i)); // the last one stays inside
    const labelled = (i) => i === last || (i % every === 0 && x(i) + half(i) + 10 < middle(last) - half(last));
    taps.forEach((tap, i) => {
      const column = svg("g", { class: "wb-c-tap" });
      const wide = Math.max(16, room / Math.max(1, taps.length));
      column.append(svg("rect", { x: x(i) - wide / 2, y: 0, width: wide, height, class: "wb-c-hit" }));
      if (labelled(i)) column.append(words(middle(i), height - 8, names[i], { class: "wb-c-soft", "text-anchor": "middle" }));
      const title = svg("title");
      title.append(reveal(tap));
      column.append(title);
      if (open !== null) {
        for (const [name, value] of [["role", "button"], ["tabindex", "0"], ["aria-label", `Open the maps at ${reveal(tap)}`]]) column.setAttribute(name, value);
        column.addEventListener("click", () => open(tap));
        column.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); open(tap); } });
      }
      box.append(column);
    });
    return box;
  };
}

/** Words for the marks of a chart. */
function key(...pairs) {
  const mark = {
    dot: () => svg("circle", { class: "wb-c-dot", cx: 8, cy: 7, r: 5 }), fold: () => svg("circle", { class: "wb-c-fold", cx: 8, cy: 7, r: 3 }),
    band: () => svg("rect", { class: "wb-c-band", x: 0, y: 1, width: 16, height: 12, rx: 2 }), base: () => svg("line", { class: "wb-c-base", x1: 8, x2: 8, y1: 0, y2: 14 }),
    worst: () => svg("path", { class: "wb-c-worst", d: "M8 1 l6 6 l-6 6 l-6 -6 z" }),
  };
  return el("p", { class: "wb-key" }, pairs.map(([kind, text]) => el("span", {}, svg("svg", { viewBox: "0 0 16 14", width: 16, height: 14, "aria-hidden": "true" }, mark[kind]()), text)));
}
