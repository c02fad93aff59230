// Numbers with units, and what the series of a run are.

const UNITS = [
  [/(^|[/_ ])bytes?($|\/)/, "B"],
  [/joules/, "J"],
  [/seconds$/, "s"],
  [/_hz$/, "Hz"],
  [/_watts$/, "W"],
  [/_metres$/, "m"],
];
const NO_BREAK = "\u00a0";
const PREFIXES = [
  [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""], [1e-3, "m"], [1e-6, "µ"], [1e-9, "n"], [1e-12, "p"],
];

function unitOf(name) {
  for (const [form, unit] of UNITS) if (form.test(name)) return unit;
  return "";
}

// A name of a figure in words, without the unit that is told elsewhere: `compute_joules` is "compute".
function inWords(name) {
  return name.replace(/(?<=.)_(seconds|joules|hz|watts|metres)$/, "").replaceAll("_", " ");
}

function digits(value) {
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value);
  const text = value.toPrecision(4);
  return text.includes("e") ? text : String(Number(text));
}

function shown(value, unit) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (!unit) return digits(value);
  const size = Math.abs(value);
  if (size === 0 || (unit === "s" && size >= 1)) return digits(value) + NO_BREAK + unit;
  const [scale, prefix] = PREFIXES.find(([from]) => size >= from * 0.9999) || PREFIXES[PREFIXES.length - 1];
  return digits(value / scale) + NO_BREAK + prefix + unit;
}

function seriesOf(run) {
  return new Map(run.series);
}

// The sum so far of what is null in rounds without it.
function soFar(values) {
  let sum = 0;
  return values.map((value) => (sum += value || 0));
}

function added(lists, length) {
  const sums = new Array(length).fill(0);
  for (const values of lists) values.forEach((value, i) => (sums[i] += value || 0));
  return sums;
}

// Bytes of the rounds by tier and direction, training and evaluation.
function bytesOf(run) {
  const ways = new Map();
  for (const [name, values] of run.series) {
    const parts = name.split("/");
    if (parts[0] !== "bytes" || parts.length !== 4) continue;
    const way = parts[1] + " " + parts[2];
    ways.set(way, (ways.get(way) || []).concat([values]));
  }
  return new Map([...ways].map(([way, lists]) => [way, added(lists, run.numbers.length)]));
}

function allBytes(run) {
  return soFar(added([...bytesOf(run).values()], run.numbers.length));
}

// What curves can be drawn over.
const AXES = [
  ["round", "global round", (run) => run.numbers],
  ["wall", "wall seconds", (run) => seriesOf(run).get("wall_seconds")],
  ["simulated", "simulated seconds", (run) => seriesOf(run).get("simulated_seconds")],
  ["bytes", "bytes so far", allBytes],
  ["joules", "joules so far", (run) => seriesOf(run).get("energy_joules/so_far")],
];

function axesOf(runs) {
  return AXES.filter(([, , values]) => runs.some((run) => values(run) !== undefined));
}

function lastOf(values) {
  if (!values) return null;
  for (let i = values.length - 1; i >= 0; i--) if (values[i] !== null) return values[i];
  return null;
}

// What models are judged by: names with a mean over clients, the loss last.
function judgedBy(runs) {
  const names = new Set();
  for (const run of runs)
    for (const [name] of run.series)
      if (name.endsWith("/mean") && name.split("/").length === 2) names.add(name.split("/")[0]);
  return [...names].sort((a, b) => (a === "loss") - (b === "loss"));
}
