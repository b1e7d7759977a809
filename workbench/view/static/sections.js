// The other parts of a report: probes, build comparisons, clusters, where the numbers come from.

/** A plain table; a cell is text, a number or a node. `numbers` names the columns that are set to the right. */
function grid(heads, rows, { numbers = [], caption = null } = {}) {
  const cell = (value, i) => el("td", { class: numbers.includes(i) ? "wb-number" : null }, value instanceof Node ? value : typeof value === "number" ? figure(value) : value === null || value === undefined ? "–" : say(String(value), 2000));
  return el("div", { class: "wb-wide-box", tabindex: "0", role: "group", "aria-label": caption || "table" }, el("table", { class: "wb-grid" },
    caption ? el("caption", {}, caption) : null,
    el("thead", {}, el("tr", {}, heads.map((head, i) => el("th", { scope: "col", class: numbers.includes(i) ? "wb-number" : null }, say(head))))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map(cell))))));
}

function section(title, lead, ...children) {
  const heading = el("h2", {}, title);
  return el("section", { class: "wb-section" }, heading, lead ? el("p", { class: "wb-lead" }, say(lead)) : null, ...children);
}

function probeSection(data, explorer) {
  const root = section(data.title, data.lead);
  if (data.layers === null) {
    const marks = [["dot", data.metric], ["fold", "each fold"], ["band", "range of shuffled labels"]];
    if (data.entries.some((entry) => Number.isFinite(entry.baseline))) marks.push(["base", data.baseline || "baseline"]);
    root.append(key(...marks));
    chart(root, data.lead || data.title, scoreChart(data.entries));
  } else {
    const { charts } = data.layers;
    root.append(...charts.map((spec) => figureOf(spec, explorer)));
  }
  if (data.points.length) root.append(el("div", { class: "wb-pairs" }, data.points.map((spec) => figureOf(spec, explorer))));
  root.append(grid(data.heads, data.rows, { numbers: data.numbers, caption: "Scores" }));
  root.append(el("div", { class: "wb-pairs" }, data.extremes.map((list) => el("div", {}, el("h3", {}, say(list.title)), rowTable(list, explorer)))));
  if (data.notes.length) root.append(notes(data.notes));
  return root;
}

function comparisonSection(data, explorer) {
  const root = section(data.title, data.lead);
  root.append(el("p", { class: "wb-verdict", "data-floor": data.measured ? "measured" : "missing" }, say(data.floor)));
  if (data.cards.length) root.append(el("div", { class: "wb-cards" }, data.cards.map(card)));
  if (data.differences.length) root.append(grid(["differs", ...data.cards.map((c) => c.title)], data.differences.map((row) => row.map(shortHash)), { caption: "What differs between the two engines" }));
  const marks = [["dot", "mean relative error"], ["worst", "worst row"]];
  if (data.entries.some((entry) => entry.floor > 0)) marks.push(["band", "noise floor"]);
  if (data.ribbon.length && data.entries.length > 1) {
    const taps = data.entries.map((entry) => entry.label);
    const open = opener(taps, explorer);
    root.append(el("h3", {}, "From the first tap to the last"), el("p", { class: "wb-soft" }, open === null ? "" : "Choose a tap to open both maps there."));
    chart(root, "Measures by tap", ribbonChart(taps, data.ribbon, open));
  }
  root.append(el("h3", {}, "Error by tap"), key(...marks));
  chart(root, data.lead || data.title, errorChart(data.entries));
  root.append(grid(data.heads, data.rows, { numbers: data.numbers, caption: "Measures by tap" }));
  if (data.worst.length) root.append(el("h3", {}, "Rows that differ most"), worstTable(data, explorer));
  if (data.notes.length) root.append(notes(data.notes));
  return root;
}

function worstTable(data, explorer) {
  return rowTable({ rows: data.worst, heads: data.worstHeads, numbers: data.worstNumbers, title: "Worst rows" }, explorer);
}

/** Rows with their prompts; one click selects a row in the maps. */
function rowTable(data, explorer) {
  const shows = explorer !== null && data.rows.some(({ row }) => Number.isInteger(row));
  if (!shows) return grid(data.heads, data.rows.map(({ cells }) => cells), { numbers: data.numbers, caption: data.title });
  const rows = data.rows.map(({ cells, row }) => {
    if (!Number.isInteger(row)) return [...cells, ""];
    const go = el("button", { type: "button", class: "wb-link wb-go", on: { click: () => explorer.model.select([row]) } }, "show");
    return [...cells, go];
  });
  return grid([...data.heads, ""], rows, { numbers: data.numbers, caption: data.title });
}

function clusterSection(data, explorer) {
  const root = section(data.title, data.lead);
  const rows = data.entries.map(({ name, size, share, code }) => [clusterName(data.column, name, code, explorer), size, `${(100 * share).toFixed(1)} %`]);
  root.append(grid(["cluster", "rows", "share"], rows, { numbers: [1, 2], caption: "Clusters" }));
  if (data.notes.length) root.append(notes(data.notes));
  return root;
}

/** The name of a cluster, as a button that selects its rows where there is a map. */
function clusterName(index, name, code, explorer) {
  if (explorer === null) return say(name, 80);
  const { model } = explorer;
  const choose = (event) => {
    const rows = [];
    for (let i = 0; i < model.n; i += 1) if (model.columns[index].at(i) === code) rows.push(i);
    model.select(rows, howOf(event));
  };
  return el("button", { type: "button", class: "wb-link", on: { click: choose } }, say(name, 80));
}

/** A result in the common form: a verdict, charts, tables, notes. */
function resultSection(data, explorer) {
  const root = section(data.title, data.lead);
  if (data.verdict !== null) root.append(el("p", { class: "wb-verdict", "data-floor": data.verdict.measured ? "measured" : "missing" }, say(data.verdict.text)));
  root.append(...data.charts.map((spec) => figureOf(spec, explorer)));
  for (const table of data.tables) if (table.rows.length) root.append(el("h3", {}, say(table.title)), rowTable(table, explorer));
  if (data.notes.length) root.append(notes(data.notes));
  return root;
}

function card({ title, facts }) {
  return el("div", { class: "wb-card" }, el("h4", {}, say(title)), el("dl", {}, facts.map(([name, value]) => hashFact(name, String(value)))));
}

/** A value that may be a hash: its start is enough for the eye, the whole stands in the title and in the JSON. */
function shortHash(value) {
  return /^[0-9a-f]{32,}$/.test(value) ? el("code", { class: "wb-hash", title: value }, `${value.slice(0, 16)}…`) : value;
}

function hashFact(name, value) {
  const node = fact(name, value);
  const short = shortHash(value);
  if (short !== value) node.lastChild.replaceChildren(short);
  return node;
}

function notes(list) {
  return el("ul", { class: "wb-notes" }, list.map((text) => el("li", {}, say(text))));
}

function provenanceSection(data) {
  const root = section("Where this comes from", data.lead);
  root.append(el("div", { class: "wb-cards wb-provenance" }, data.groups.map(card)));
  root.append(el("details", {}, el("summary", {}, "The same as JSON"), el("pre", { tabindex: "0" }, say(JSON.stringify(data.json, null, 1)))));
  return root;
}

const SECTIONS = { probe: probeSection, result: resultSection, comparison: comparisonSection, clusters: clusterSection, provenance: provenanceSection };
