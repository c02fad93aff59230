// The partition, class by client, and the map of a planned run.

function partitionPicture(partition) {
  if (partition.note !== undefined) return element("p", { class: "note" }, partition.note);
  const { classes, clients, edges, counts } = partition;
  const told = element("p", { class: "note", "aria-live": "polite" }, "darker: more training examples; point at a field to read it");
  const width = Math.max(Math.min(Math.floor(900 / clients.length), 24), 1) * clients.length;
  const height = Math.max(Math.min(Math.floor(300 / classes.length), 22), 2);
  const canvas = element("canvas", { class: "partition", width, height: height * classes.length, role: "img",
    "aria-label": classes.length + " classes by " + clients.length + " clients" });
  canvas.style.height = canvas.height + "px";
  const paint = canvas.getContext("2d");
  let most = 1;
  for (const row of counts) for (const count of row) most = Math.max(most, count);
  const wide = width / clients.length;
  paint.fillStyle = "#fff";
  paint.fillRect(0, 0, canvas.width, canvas.height);
  counts.forEach((row, i) => row.forEach((count, k) => {
    if (!count) return;
    const grey = Math.round(225 - 215 * Math.sqrt(count / most));
    paint.fillStyle = "rgb(" + grey + "," + grey + "," + grey + ")";
    paint.fillRect(i * wide, k * height, Math.max(wide - (wide > 3 ? 1 : 0), 1), height - (height > 3 ? 1 : 0));
  }));
  paint.fillStyle = "#c1440e";
  const borders = [];
  edges.forEach((edge, i) => {
    if (i && edge !== edges[i - 1]) paint.fillRect(i * wide - 1, 0, 2, canvas.height);
    if (!i || edge !== edges[i - 1]) borders.push(edge + " from client " + clients[i]);
  });
  canvas.addEventListener("mousemove", (event) => {
    const i = Math.floor((event.offsetX / canvas.clientWidth) * clients.length);
    const k = Math.floor((event.offsetY / canvas.clientHeight) * classes.length);
    if (i >= 0 && i < clients.length && k >= 0 && k < classes.length)
      told.textContent = "client " + clients[i] + " (" + edges[i] + "), class " + classes[k] + ": " + counts[i][k] + " training examples";
  });
  const named = borders.length <= 12 ? borders.join("; ") : borders.length + " edges";
  return element("div", {},
    element("div", { class: "scroll" }, canvas),
    element("p", { class: "note" }, "Rows are " + classes.length + " classes, from " + classes[0] + " at the top to " + classes[classes.length - 1] +
      "; columns are " + clients.length + " clients, with lines between edges: " + named + ". The darkest has " + most + " examples."),
    told);
}

const MOST_LABELS = 60;

function mapPicture(world, columns) {
  const times = new Map(columns).get("times_selected") || [];
  const xs = world.stations.map(([, x]) => x), ys = world.stations.map(([, , y]) => y), r = world.radius;
  const [left, right] = [Math.min(...xs) - r, Math.max(...xs) + r], [low, high] = [Math.min(...ys) - r, Math.max(...ys) + r];
  const most = Math.max(1, ...world.clients.map(([client]) => times[client] || 0));
  const size = (right - left) / 70;
  const picture = svg("svg", { viewBox: [left, -high, right - left, high - low].join(" "), class: "map", role: "img" },
    svg("title", {}, "base stations and clients"));
  for (const [cell, x, y] of world.stations) {
    picture.append(svg("circle", { cx: x, cy: -y, r, class: "cell" }),
      svg("path", { d: "M" + (x - size) + " " + (-y + size) + "h" + 2 * size + "l" + -size + " " + -2 * size + "z", class: "station" }, svg("title", {}, "base station of cell " + cell)));
  }
  for (const [client, cell, x, y] of world.clients) {
    const count = times[client] || 0, grey = Math.round(245 - 225 * (count / most));
    const circle = svg("circle", { cx: x, cy: -y, r: size, fill: "rgb(" + grey + "," + grey + "," + grey + ")", class: "client" },
      svg("title", {}, "client " + client + ", cell " + cell + ": selected in " + count + " edge rounds"));
    picture.append(circle);
  }
  const cells = world.stations.length === 1 ? "one cell" : world.stations.length + " cells";
  return element("div", {}, picture,
    element("p", { class: "note" }, "A triangle is a base station, a circle a client: the darker, the more often selected (at most " + most +
      " edge rounds, white: never). " + cells + ", " + shown(r, "m") + " in radius; point at one to read it."));
}
