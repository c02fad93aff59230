// Curves. Lines differ in dash and width as well as in colour: they can be told apart in black and white.

const COLOURS = ["#0b4f6c", "#c1440e", "#6d597a", "#2b2d42", "#2f7d4f", "#8a6d00", "#9b1d4f", "#4a4a4a"];
const DASHES = [[], [8, 4], [2, 3], [12, 4, 2, 4], [5, 5], [14, 6], [2, 6], [10, 3, 3, 3]];

function look(place) {
  const dash = DASHES[(place + Math.floor(place / COLOURS.length)) % DASHES.length];
  return { stroke: COLOURS[place % COLOURS.length], dash, width: place % 2 ? 1.6 : 2.2 };
}

function sample({ stroke, dash, width }) {
  return svg("svg", { width: 36, height: 10, class: "line" },
    svg("line", { x1: 0, y1: 5, x2: 36, y2: 5, stroke, "stroke-width": width, "stroke-dasharray": dash.join(" ") }));
}

// Lines of several runs over x values of their own, as the library takes them: one x axis, null where a line has no point.
function together(lines) {
  return uPlot.join(lines.map(({ x, y }) => sortedPoints(x, y)));
}

function sortedPoints(x, y) {
  const points = x.map((at, i) => [at, y[i]]).filter(([at]) => at !== null && at !== undefined);
  points.sort((a, b) => a[0] - b[0]);
  const apart = points.filter(([at], i) => i === 0 || at !== points[i - 1][0]);
  return [apart.map(([at]) => at), apart.map(([, value]) => (value === undefined ? null : value))];
}

// A chart: a title, its lines ({label, x, y, look, band}), the names and units of its axes.
function chart(title, lines, xName, xUnit, yUnit, options) {
  const drawn = lines.filter(({ x, y }) => x && y && y.some((value) => value !== null && value !== undefined));
  const box = element("figure", { class: "chart" }, element("figcaption", {}, title));
  if (!drawn.length) {
    box.append(element("p", { class: "note" }, "no figures yet"));
    return box;
  }
  const place = element("div", { class: "plot" });
  box.append(place);
  const data = together(drawn);
  const whole = xName === "global round";
  const series = [
    { label: xName, value: (_, value) => (value === null ? "–" : shown(value, xUnit)) },
    ...drawn.map((line) => ({
      label: line.label,
      spanGaps: true,
      stroke: line.look.stroke,
      width: line.look.width,
      dash: line.look.dash,
      points: { show: data[0].length <= 30, size: 5 },
      value: (_, value) => shown(value, yUnit),
    })),
  ];
  const bands = drawn
    .map((line, i) => (line.band ? { series: [i + 1, i + 2], fill: "rgba(11,79,108,0.10)" } : null))
    .filter((band) => band);
  const axis = { stroke: "#222", font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif", labelSize: 18 };
  const showLast = (plot) => {
    const rest = () => plot.setLegend({ idx: data[0].length - 1 });
    plot.over.addEventListener("mouseleave", rest);
    rest();
  };
  const make = () => {
    const width = Math.max(place.clientWidth || 300, 240);
    return new uPlot(
      {
        width,
        height: 240,
        padding: [8, 14, 0, 0],
        cursor: { drag: { x: false, y: false } },
        legend: { live: true },
        scales: { x: { time: false, range: rangeOf(data[0]) }, y: { range: yRange(options) } },
        series,
        bands,
        hooks: { ready: [showLast] },
        axes: [
          {
            ...axis, label: xName, space: 60,
            incrs: whole ? [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 1e5] : undefined,
            values: (_, ticks) => ticks.map((tick) => shown(tick, xUnit)),
            grid: { show: false },
          },
          {
            ...axis, space: 34, size: yUnit ? 74 : 58,
            values: (_, ticks) => ticks.map((tick) => shown(tick, yUnit)),
            grid: { stroke: "#ddd", width: 1 },
          },
        ],
      },
      data,
      place,
    );
  };
  box.draw = () => {
    if (box.plot) box.plot.destroy();
    box.plot = make();
    // The legend shows each line as it is drawn, and the last values while the pointer is elsewhere.
    box.plot.root.querySelectorAll(".u-legend .u-series .u-marker").forEach((marker, i) =>
      i === 0 ? marker.remove() : marker.replaceWith(sample(drawn[i - 1].look)));
  };
  return box;
}

function rangeOf(x) {
  const low = x[0], high = x[x.length - 1];
  return low === high ? [low - 1, high + 1] : [low, high];
}

function yRange(options) {
  const { low, high } = options || {};
  return (_, least, most) => {
    if (least === null) return [0, 1];
    const room = (most - least) * 0.06 || Math.abs(most) * 0.1 || 1;
    return [low !== undefined ? Math.min(low, least) : least - room, high !== undefined ? high : most + room];
  };
}

const ZERO = { low: 0 };
const rangeOfFigure = (name) => (name === "accuracy" ? { low: 0, high: 1 } : {});

// The charts of some runs; of one with all its lines, of several one line each.
function chartsOf(runs, axisName, anyFigure) {
  const [name, xName, valuesOf] = axesOf(runs).find(([name]) => name === axisName) || AXES[0];
  const xUnit = { wall: "s", simulated: "s", bytes: "B", joules: "J" }[name] || "";
  const line = (run, label, y, place, more) => ({ label, x: valuesOf(run), y, look: look(place), ...more });
  const each = (of) => runs.map((run) => line(run, run.label, of(run), run.place));
  const figure = (title, lines, yUnit, options) => chart(title, lines, xName, xUnit, yUnit, options);
  const charts = runs.length === 1 ? chartsOfOne(runs[0], line, figure) : chartsOfSeveral(runs, each, figure);
  if (anyFigure)
    charts.push(figure(anyFigure, each((run) => seriesOf(run).get(anyFigure)), unitOf(anyFigure), {}));
  return charts;
}

function chartsOfOne(run, line, figure) {
  const own = seriesOf(run);
  const thin = { look: { stroke: "#7d9db0", width: 1, dash: [2, 2] } };
  const charts = judgedBy([run]).map((name) =>
    figure(name, [
      line(run, "clients, mean", own.get(name + "/mean"), 0),
      line(run, "whole test pool", own.get("test/" + name), 1),
      line(run, "clients, highest", own.get(name + "/max"), 0, { ...thin, band: true }),
      line(run, "clients, lowest", own.get(name + "/min"), 0, thin),
    ], "", rangeOfFigure(name)));
  const ways = [...bytesOf(run)];
  charts.push(figure("bytes so far", ways.map(([way, y], i) => line(run, way, soFar(y), i)), "B", ZERO));
  charts.push(figure("seconds of a round", [line(run, "wall seconds", own.get("seconds"), 0)], "s", ZERO));
  if (own.has("simulated_seconds"))
    charts.push(figure("simulated seconds so far", [line(run, "simulated", own.get("simulated_seconds"), 0)], "s", ZERO));
  if (own.has("energy_joules/so_far")) {
    const parts = ["compute", "upload"].map((part, i) => line(run, part, soFar(own.get("energy_joules/" + part)), i + 1));
    charts.push(figure("joules so far", [line(run, "all", own.get("energy_joules/so_far"), 0), ...parts], "J", ZERO));
  }
  charts.push(figure("failures in a round", [line(run, "failures", own.get("failures"), 0)], "", ZERO));
  return [...charts, ...edgeCharts(run, line, figure)];
}

function chartsOfSeveral(runs, each, figure) {
  const charts = judgedBy(runs).map((name) =>
    figure(name + ", mean over clients", each((run) => seriesOf(run).get(name + "/mean")), "", rangeOfFigure(name)));
  charts.push(figure("bytes so far", each(allBytes), "B", ZERO));
  for (const [name, title, unit] of [
    ["seconds", "seconds of a round", "s"],
    ["simulated_seconds", "simulated seconds so far", "s"],
    ["energy_joules/so_far", "joules so far", "J"],
    ["failures", "failures in a round", ""],
  ])
    if (runs.some((run) => seriesOf(run).has(name)))
      charts.push(figure(title, each((run) => seriesOf(run).get(name)), unit, ZERO));
  return charts;
}

const MOST_EDGES = 8;

// A line for each of the first edges, where there are several.
function edgeCharts(run, line, figure) {
  if (run.edges.length < 2) return [];
  const few = run.edges.slice(0, MOST_EDGES);
  const beside = run.edges.length > MOST_EDGES ? ", the first " + MOST_EDGES + " edges" : "";
  const names = [...judgedBy([run]), "seconds", "plans/selected"];
  return names
    .filter((name) => few.some((edge) => new Map(edge.series).has(name)))
    .map((name) =>
      figure(
        (name === "plans/selected" ? "selected in a round" : name) + " by edge" + beside,
        few.map((edge, i) => line(run, short(edge.name), new Map(edge.series).get(name), i)),
        unitOf(name),
        rangeOfFigure(name),
      ),
    );
}

function short(text) {
  return text.length > 24 ? text.slice(0, 23) + "…" : text;
}
