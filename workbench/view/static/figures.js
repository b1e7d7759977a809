// Charts over named places, paths, shades and points; each takes a plain description and gives a drawing of any width.

/** The nearest round range around numbers; on a logarithmic axis these are exponents. */
function span(values, log) {
  const known = values.filter((v) => Number.isFinite(v) && (!log || v > 0)).map((v) => (log ? Math.log10(v) : v));
  if (!known.length) return [0, 1];
  const low = log ? Math.floor(Math.min(...known)) : Math.max(-1, Math.min(...known));
  const high = log ? Math.ceil(Math.max(...known)) : Math.max(low, ...known);
  const pad = log ? 0 : (high - low || 1) * 0.06;
  return [low - pad, (high === low ? high + 1 : high) + pad];
}

/** Push labels apart so that none lies over another; gives the height of each. */
function apart(heights, least, top, bottom) {
  const order = heights.map((_, i) => i).sort((a, b) => heights[a] - heights[b]);
  const placed = heights.slice();
  let above = top - least;
  for (const i of order) { placed[i] = Math.max(placed[i], above + least); above = placed[i]; }
  let below = bottom + least;
  for (const i of order.reverse()) { placed[i] = Math.min(placed[i], below - least); below = placed[i]; }
  return placed;
}

/** A closed outline between two lists of heights, over the places where both are known. */
function outline(x, y, low, high) {
  const known = low.map((v, i) => i).filter((i) => Number.isFinite(low[i]) && Number.isFinite(high[i]));
  return [...known.map((i) => `${x(i)},${y(high[i])}`), ...known.reverse().map((i) => `${x(i)},${y(low[i])}`)].join(" ");
}

/** Curves over named places, each with its interval, its name at its end, and a band behind them all; a place may be a button. */
function curvesChart({ places, series, band = null, log = false }, open = null) {
  return (width) => {
    const left = 54;
    const right = Math.min(width * 0.28, 12 + 6.6 * Math.max(0, ...series.map((s) => s.name.length), band === null ? 0 : band.name.length));
    const height = 262;
    const bottom = height - 30;
    const room = width - left - right - 20;
    const x = (i) => left + 10 + (places.length === 1 ? room / 2 : (i / (places.length - 1)) * room);
    const all = series.flatMap((s) => [...s.values, ...(s.low || []), ...(s.high || [])]).concat(band === null ? [] : [...band.low, ...band.high]);
    const [low, high] = span(all, log);
    const y = (v) => bottom - ((Math.min(high, Math.max(low, log ? Math.log10(Math.max(v, 1e-300)) : v)) - low) / (high - low)) * (bottom - 12);
    const box = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height });
    const marks = log ? Array.from({ length: high - low + 1 }, (_, i) => low + i) : ticks(low, high, 5);
    const every = Math.ceil(marks.length / 7);
    marks.forEach((mark, k) => {
      const at = y(log ? 10 ** mark : mark);
      if (k % every) return;
      box.append(svg("line", { class: "wb-c-grid", x1: left, x2: width - right, y1: at, y2: at }), words(left - 8, at + 4, log ? `10${[...String(mark)].map((c) => RAISED[c]).join("")}` : figure(mark), { class: "wb-c-soft", "text-anchor": "end" }));
    });
    if (band !== null) box.append(svg("polygon", { class: "wb-c-band", points: outline(x, y, band.low, band.high) }));
    for (const s of series) if (s.low) box.append(svg("polygon", { class: "wb-c-interval", points: outline(x, y, s.low, s.high) }));
    const labels = [];
    series.forEach((s, k) => {
      const mark = s.mark || ["main", "second", "dash"][k % 3];
      const known = s.values.map((v, i) => i).filter((i) => Number.isFinite(s.values[i]) && (!log || s.values[i] > 0));
      s.values.forEach((v, i) => { if (log && v === 0) box.append(svg("circle", { class: `wb-c-ring wb-c-${mark}`, cx: x(i) + 9 * (k - (series.length - 1) / 2), cy: bottom - 5, r: 4 })); });
      if (log && s.values.every((v) => v === 0)) labels.push({ name: s.name, mark, at: bottom - 5 });
      if (!known.length) return;
      box.append(svg("polyline", { class: `wb-c-curve wb-c-${mark}`, points: known.map((i) => `${x(i)},${y(s.values[i])}`).join(" ") }));
      if (mark === "main" || mark === "second") for (const i of known) box.append(svg("circle", { class: `wb-c-spot wb-c-${mark}`, cx: x(i), cy: y(s.values[i]), r: 4 }));
      labels.push({ name: s.name, mark, at: y(s.values[known[known.length - 1]]) });
    });
    if (band !== null) {
      const last = band.low.length - 1;
      if (Number.isFinite(band.low[last])) labels.push({ name: band.name, mark: "soft", at: (y(band.low[last]) + y(band.high[last])) / 2 });
    }
    const heights = apart(labels.map(({ at }) => at + 4), 15, 12, bottom + 4);
    labels.forEach(({ name, mark }, k) => box.append(words(width - right + 2, heights[k], clip(name, right), { class: `wb-c-name wb-c-name-${mark}` })));
    placeLabels(box, places, { x, room, height, open, told: (i) => series.map((s) => `${s.name} ${figure(s.values[i])}`).join(", ") });
    return box;
  };
}

/** Names under the places of a chart; each place can be pointed at, and is a button where `open` is given. */
function placeLabels(box, places, { x, room, height, open, told }) {
  const wide = room / Math.max(1, places.length - 1 || 1);
  const every = Math.ceil(places.length / Math.max(1, Math.floor(room / 120)));
  places.forEach((place, i) => {
    const column = svg("g", { class: "wb-c-tap" });
    column.append(svg("rect", { x: x(i) - Math.max(8, wide / 2), y: 0, width: Math.max(16, wide), height, class: "wb-c-hit" }));
    const last = i === places.length - 1;
    const crowded = !last && places.length - 1 - i < every && every > 1;
    if ((i % every === 0 && !crowded) || last) column.append(words(x(i), height - 8, clip(place, every * wide), { class: "wb-c-soft", "text-anchor": places.length > 1 && last ? "end" : places.length > 1 && i === 0 ? "start" : "middle" }));
    const title = svg("title");
    title.append(`${reveal(place)}: ${reveal(told(i))}`);
    column.append(title);
    if (open !== null && open.reaches(place)) {
      for (const [name, value] of [["role", "button"], ["tabindex", "0"], ["aria-label", `Open the maps at ${reveal(place)}`]]) column.setAttribute(name, value);
      column.addEventListener("click", () => open(place));
      column.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); open(place); } });
    }
    box.append(column);
  });
}

/** Paths through named steps in one plane, with equal units on both axes; a ring marks the start. */
function pathsChart({ places, series }) {
  return (width) => {
    const height = Math.min(420, Math.max(260, width * 0.5));
    const points = series.flatMap((s) => s.points).filter(([a, b]) => Number.isFinite(a) && Number.isFinite(b));
    const xs = points.map(([a]) => a);
    const ys = points.map(([, b]) => b);
    const [left, right, low, high] = points.length ? [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)] : [0, 1, 0, 1];
    const k = Math.min((width - 240) / (right - left || 1), (height - 60) / (high - low || 1));
    const x = (v) => width / 2 + (v - (left + right) / 2) * k;
    const y = (v) => height / 2 - (v - (low + high) / 2) * k;
    const box = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height });
    series.forEach((s, n) => {
      const mark = n === 0 ? "main" : "second";
      const known = s.points.map((p, i) => i).filter((i) => s.points[i].every(Number.isFinite));
      box.append(svg("polyline", { class: `wb-c-curve wb-c-${mark}`, points: known.map((i) => `${x(s.points[i][0])},${y(s.points[i][1])}`).join(" ") }));
      known.forEach((i, order) => {
        const spot = svg("circle", { class: order === 0 ? `wb-c-ring wb-c-${mark}` : `wb-c-spot wb-c-${mark}`, cx: x(s.points[i][0]), cy: y(s.points[i][1]), r: order === 0 ? 5.5 : 4 });
        const title = svg("title");
        title.append(`${reveal(s.name)} at ${reveal(places[i])}`);
        spot.append(title);
        box.append(spot);
      });
      if (!known.length) return;
      const [a, b] = s.points[known[known.length - 1]];
      box.append(words(x(a) + 9, y(b) + (n === 0 ? -6 : 14), clip(s.name, 110), { class: `wb-c-name wb-c-name-${mark}` }));
    });
    return box;
  };
}

/** A table of counts as shades, with the counts in it. */
function shadesChart({ rows, columns, values }) {
  return (width) => {
    const left = Math.min(width * 0.34, 210);
    const top = 86;
    const side = Math.max(18, Math.min(46, (width - left - 60) / columns.length));
    const tall = 26;
    const most = Math.max(1, ...values.flat());
    const height = top + rows.length * tall + 8;
    const box = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height });
    columns.forEach((name, j) => box.append(words(0, 0, clip(name, 90), { class: "wb-c-soft", transform: `translate(${left + side * (j + 0.5)} ${top - 8}) rotate(-38)` })));
    rows.forEach((name, i) => {
      box.append(words(0, top + tall * (i + 0.5) + 4, clip(name, left - 10), { class: "wb-c-text" }));
      columns.forEach((_, j) => {
        const v = values[i][j];
        box.append(svg("rect", { class: "wb-c-shade", x: left + side * j, y: top + tall * i, width: side - 1, height: tall - 1, "fill-opacity": v ? 0.05 + (0.4 * v) / most : 0 }));
        if (v && side > 26) box.append(words(left + side * (j + 0.5) - 0.5, top + tall * (i + 0.5) + 4, count(v), { class: "wb-c-count", "text-anchor": "middle" }));
      });
    });
    return box;
  };
}

/** Points of two numbers, with the line on which both are equal. */
function pointsChart({ x: xs, y: ys, xname, yname }) {
  return (width) => {
    const height = 340;
    const left = 58;
    const bottom = height - 40;
    const right = Math.min(width - 16, left + 460);
    const all = [...xs, ...ys].filter(Number.isFinite);
    const [low, high] = all.length ? [Math.min(...all), Math.max(...all)] : [0, 1];
    const unit = high - low || 1;
    const x = (v) => left + ((v - low) / unit) * (right - left);
    const y = (v) => bottom - ((v - low) / unit) * (bottom - 14);
    const box = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height });
    for (const tick of ticks(low, high, 5)) {
      box.append(svg("line", { class: "wb-c-grid", x1: left, x2: right, y1: y(tick), y2: y(tick) }), words(left - 8, y(tick) + 4, figure(tick), { class: "wb-c-soft", "text-anchor": "end" }), words(x(tick), bottom + 16, figure(tick), { class: "wb-c-soft", "text-anchor": "middle" }));
    }
    box.append(svg("line", { class: "wb-c-floor", x1: x(low), x2: x(high), y1: y(low), y2: y(high) }));
    xs.forEach((v, i) => { if (Number.isFinite(v) && Number.isFinite(ys[i])) box.append(svg("circle", { class: "wb-c-point", cx: x(v), cy: y(ys[i]), r: 2.5 })); });
    box.append(words(right, height - 6, clip(xname, 300), { class: "wb-c-text", "text-anchor": "end" }), words(0, 10, clip(yname, 300), { class: "wb-c-text" }));
    return box;
  };
}

/** A function that opens the maps at a tap, or null where no map has any of these places. */
function opener(places, explorer) {
  if (explorer === null) return null;
  const reaches = (tap) => explorer.maps.some((map) => map.frames.some((frame) => frame.tap === tap));
  return places.some(reaches) ? Object.assign((tap) => explorer.goToTap(tap), { reaches }) : null;
}

const FIGURES = {
  curves: (spec, explorer) => curvesChart(spec, opener(spec.places, explorer)),
  ribbon: (spec, explorer) => ribbonChart(spec.places, spec.bands, opener(spec.places, explorer)),
  scores: (spec) => scoreChart(spec.entries),
  paths: pathsChart,
  shades: shadesChart,
  points: pointsChart,
};

/** A chart by its description, with its title. */
function figureOf(spec, explorer) {
  const host = el("div", {}, el("h3", {}, say(spec.title)));
  chart(host, spec.title, FIGURES[spec.kind](spec, explorer));
  if (spec.log && spec.series.some(({ values }) => values.includes(0))) host.append(el("p", { class: "wb-soft" }, "A ring at the foot is an exact zero: the same bits."));
  return host;
}
