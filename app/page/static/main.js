// The page: what is shown, what the reader chose, and what is new.

const page = document.getElementById("page");
let data = JSON.parse(document.getElementById("data").textContent);
const chosen = { run: 0, axis: "round", figure: "", round: -1, drawn: new Set() };
const open = new Set();
const known = new Set();
const ends = element("p", { class: "note", role: "status" });

const head = element("header", {});
const several = section("runs", "Runs", element("div", { class: "scroll" }, element("table", {})));
const curves = element("div", { class: "charts" });
const axisSelect = choice("over", [["round", "global round"]], "round", (value) => ((chosen.axis = value), drawCurves()));
const figureSelect = choice("also draw", [["", "nothing more"]], "", (value) => ((chosen.figure = value), drawCurves()));
const runSelect = choice("run", [[0, ""]], 0, (value) => {
  chosen.run = Number(value);
  chosen.round = -1;
  open.clear();
  drawRun();
});
const slider = element("input", { type: "range", min: 0, max: 0, value: 0, "aria-label": "round of the tree", oninput: () => {
  const run = data.runs[chosen.run];
  chosen.round = Number(slider.value) === run.numbers.length - 1 ? -1 : Number(slider.value);
  drawTree();
} });
const sliderWords = element("span", {});
const treeBox = element("div", {});
const clientTable = dataTable("clients");
const partitionBox = element("div", {});
const plansBox = element("div", {});
const devicesBox = element("div", {});
const notesBox = element("div", {});
const settingsBox = element("div", {});
const plans = section("plans", "Plans", plansBox);
const devices = section("devices", "Devices", devicesBox);
const planTables = new Map();

page.append(
  head, ends, several,
  section("curves", "Curves", element("div", { class: "tools" }, axisSelect, figureSelect), curves),
  element("div", { class: "of-run" }, runSelect, notesBox),
  section("tiers", "Tiers", element("div", { class: "tools" }, element("label", { class: "choice" }, "round ", slider), sliderWords), legendOfStates(), treeBox),
  plans,
  section("clients", "Clients", clientTable),
  section("partition", "Partition", partitionBox),
  devices,
  section("settings", "Settings", settingsBox),
);

function tile(name, value) {
  return element("div", { class: "tile" }, element("span", { class: "value" }, value), element("span", { class: "name" }, name));
}

function tilesOf(run) {
  const own = seriesOf(run), tiles = [];
  for (const name of judgedBy([run])) tiles.push(tile(name + ", mean over clients", shown(lastOf(own.get(name + "/mean")))));
  const total = allBytes(run);
  tiles.push(tile("sent in all", shown(lastOf(total) ?? 0, "B")));
  tiles.push(tile("wall time", shown(lastOf(own.get("wall_seconds")), "s")));
  if (own.has("simulated_seconds")) tiles.push(tile("simulated time", shown(lastOf(own.get("simulated_seconds")), "s")));
  if (own.has("energy_joules/so_far")) tiles.push(tile("energy", shown(lastOf(own.get("energy_joules/so_far")), "J")));
  tiles.push(tile("failures", shown(run.failures)));
  return element("div", { class: "tiles" }, ...tiles);
}

function stateOf(run) {
  const last = lastOf(run.numbers) ?? 0;
  const stopped = run.stopped ? ", stopped by " + run.stopped : "";
  return run.state + ", round " + last + " of " + run.rounds + stopped;
}

function drawHead() {
  const run = data.runs[0];
  document.title = data.runs.length === 1 ? run.label + " – " + run.state : data.runs.length + " runs";
  const links = [...page.querySelectorAll("section")].filter((one) => !one.hidden)
    .map((one) => element("a", { href: "#" + one.id }, one.querySelector("h2").textContent));
  const nav = element("nav", { "aria-label": "parts of the page" }, ...links);
  if (data.runs.length > 1) {
    head.replaceChildren(element("h1", {}, data.runs.length + " runs"), nav);
    return;
  }
  const last = lastOf(run.numbers) ?? 0;
  head.replaceChildren(
    element("h1", {}, run.label), element("p", { class: "title" }, run.title + ": " + stateOf(run)),
    element("progress", { max: run.rounds || 1, value: last, "aria-label": "rounds" }),
    ...run.notes.map((note) => element("p", { class: "note" }, note)), tilesOf(run), nav);
}

function drawRuns() {
  several.hidden = data.runs.length < 2;
  if (several.hidden) return;
  const differs = [...new Set(data.runs.flatMap((run) => (run.differs || []).map(([key]) => key)))];
  const figures = judgedBy(data.runs);
  const heads = ["", "run", ...differs, "state", ...figures, "bytes", "wall time"];
  const rows = data.runs.map((run, i) => {
    const own = seriesOf(run), values = new Map(run.differs || []), total = allBytes(run);
    const box = element("input", { type: "checkbox", checked: chosen.drawn.has(run.label), "aria-label": "draw " + run.label, onchange: () => {
      if (box.checked) chosen.drawn.add(run.label);
      else chosen.drawn.delete(run.label);
      drawCurves();
    } });
    return element("tr", {}, element("td", { class: "pick" }, element("label", {}, box, sample(look(run.place)))), element("td", {}, run.label),
      ...differs.map((key) => element("td", {}, values.get(key) ?? "")), element("td", {}, stateOf(run)),
      ...figures.map((name) => element("td", { class: "number" }, shown(lastOf(own.get(name + "/mean"))))),
      element("td", { class: "number" }, shown(lastOf(total) ?? 0, "B")),
      element("td", { class: "number" }, shown(lastOf(own.get("wall_seconds")), "s")));
  });
  several.querySelector("table").replaceChildren(
    element("thead", {}, element("tr", {}, ...heads.map((text) => element("th", { scope: "col" }, text)))), element("tbody", {}, ...rows));
}

function drawCurves() {
  const runs = data.runs.filter((run) => chosen.drawn.has(run.label));
  const shownRuns = runs.length ? runs : data.runs.slice(0, 1);
  const axes = axesOf(shownRuns);
  refill(axisSelect.querySelector("select"), axes.map(([name, words]) => [name, words]), chosen.axis);
  const names = [...new Set(shownRuns.flatMap((run) => run.series.map(([name]) => name)))].sort();
  refill(figureSelect.querySelector("select"), [["", "nothing more"], ...names.map((name) => [name, name])], chosen.figure);
  for (const one of curves.children) if (one.plot) one.plot.destroy();
  const charts = chartsOf(shownRuns, chosen.axis, chosen.figure);
  curves.replaceChildren(...charts);
  for (const one of charts) if (one.draw) one.draw();
}

function drawTree() {
  const run = data.runs[chosen.run];
  const least = run.first_state, most = run.numbers.length - 1;
  slider.min = Math.min(least, Math.max(most, 0));
  slider.max = Math.max(most, 0);
  slider.disabled = most <= least;
  const at = chosen.round < 0 ? most : Math.min(chosen.round, most);
  slider.value = Math.max(at, 0);
  sliderWords.textContent = at < 0 ? "none is over yet" : run.numbers[at] + (chosen.round < 0 ? ", the last" : " of " + run.numbers[most]);
  treeBox.replaceChildren(tree(run, at, open));
}

function clientColumns(run) {
  const letters = run.states.length ? run.states[run.states.length - 1] : "";
  const reasons = new Map(run.reasons.map(([client, , reason]) => [client, reason]));
  const clients = run.edge_of.map((_, client) => client);
  return [
    ["client", clients],
    ["edge", clients.map((client) => (run.edge_of[client] < 0 ? "" : run.edges[run.edge_of[client]].name))],
    ["in the last round", clients.map((client) => SIGNS.get(letters[client] || ".").words)],
    ...run.clients.columns,
    ["left out last, why", clients.map((client) => reasons.get(client) || "")],
  ];
}

function drawPlans(run) {
  plans.hidden = !run.world && !run.tables.length;
  const boxes = [];
  if (run.world) boxes.push(mapPicture(run.world, run.clients.columns));
  for (const { title, columns } of run.tables) {
    if (!planTables.has(title)) planTables.set(title, dataTable(title));
    const table = planTables.get(title);
    table.show(columns);
    boxes.push(element("h3", {}, title), table);
  }
  plansBox.replaceChildren(...boxes);
}

function drawRun() {
  chosen.run = Math.min(chosen.run, data.runs.length - 1);
  const run = data.runs[chosen.run];
  refill(runSelect.querySelector("select"), data.runs.map((one, i) => [i, one.label]), chosen.run);
  runSelect.hidden = data.runs.length < 2;
  notesBox.replaceChildren(...(runSelect.hidden ? [] : run.notes).map((note) => element("p", { class: "note" }, note)));
  drawTree();
  clientTable.show(clientColumns(run));
  drawPlans(run);
  partitionBox.replaceChildren(partitionPicture(run.partition));
  devices.hidden = !run.devices;
  if (run.devices) {
    const { count, note } = run.devices;
    devicesBox.replaceChildren(
      ...(count === null ? [] : [element("p", {}, count + " nodes are connected, as Prometheus reads it.")]), element("p", { class: "note" }, note));
  }
  const rows = [...run.settings, ...run.made_by].map(([key, value]) => element("tr", {}, element("th", { scope: "row" }, key), element("td", {}, value)));
  const wasOpen = settingsBox.querySelector("details[open]") !== null;
  settingsBox.replaceChildren(element("details", { open: wasOpen }, element("summary", {}, run.settings.length + " settings, and what made the run"),
    element("div", { class: "scroll" }, element("table", { class: "settings" }, element("tbody", {}, ...rows)))));
}

const MOST_DRAWN = 12;

function draw() {
  data.runs.forEach((run, i) => {
    run.place = i;
    if (!known.has(run.label) && chosen.drawn.size < MOST_DRAWN) chosen.drawn.add(run.label);
    known.add(run.label);
  });
  drawRuns();
  drawRun();
  drawHead();
  drawCurves();
}

let isWaiting = false;

async function ask() {
  if (isWaiting) return;
  isWaiting = true;
  try {
    const parameters = new URLSearchParams(location.search);
    parameters.set("have", data.live.version);
    const answer = await fetch("data.json?" + parameters, { cache: "no-store", credentials: "omit" });
    if (answer.status === 200) {
      data = await answer.json();
      const y = window.scrollY;
      draw();
      window.scrollTo(0, y);
    }
    ends.textContent = answer.ok ? "" : "espalier watch answers " + answer.status + ": what is shown may be old";
  } catch {
    ends.textContent = "espalier watch does not answer any more: this is what it said last";
  } finally {
    isWaiting = false;
  }
}

draw();
if (data.live) setInterval(ask, data.live.every_seconds * 1000);
let width = window.innerWidth;
window.addEventListener("resize", () => {
  if (window.innerWidth !== width) {
    width = window.innerWidth;
    for (const one of curves.children) if (one.draw) one.draw();
  }
});
