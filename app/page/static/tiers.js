// The tree of tiers: cloud, edges, clients; what each did in a round, why, and its seconds.

const STATES = [
  ["t", "●", "trained"],
  ["l", "◐", "late"],
  ["x", "✕", "left out"],
  ["d", "⇣", "dropped out"],
  ["s", "○", "spare: nobody waited for it"],
  ["a", "–", "away"],
  ["w", "□", "waited: not asked"],
  [".", "·", "no word of it"],
];
const SIGNS = new Map(STATES.map(([letter, sign, words]) => [letter, { sign, words }]));
const MOST_CHIPS = 200;

function legendOfStates() {
  return element("p", { class: "note signs" }, ...STATES.map(([letter, sign, words]) =>
    element("span", { class: "sign" }, element("b", { class: "state-" + name(letter) }, sign), " " + words)));
}

function name(letter) {
  return letter === "." ? "none" : letter;
}

function counted(letters, clients) {
  const counts = new Map();
  for (const client of clients) counts.set(letters[client], (counts.get(letters[client]) || 0) + 1);
  return STATES.filter(([letter]) => counts.has(letter)).map(([letter, sign, words]) =>
    element("span", { class: "sign" }, element("b", { class: "state-" + name(letter) }, sign), " " + counts.get(letter) + " " + words.split(":")[0]));
}

function parts(seconds) {
  return element("span", { class: "seconds" },
    "training " + shown(seconds[0], "s") + ", waiting " + shown(seconds[1], "s") + ", transfer " + shown(seconds[2], "s"));
}

// `open` keeps the edges that the reader has opened.
function tree(run, at, open) {
  const letters = at < 0 ? "" : run.states[at - run.first_state] || "";
  const isLast = at === run.numbers.length - 1;
  const all = [...run.edge_of.keys()];
  const columns = new Map(run.clients.columns);
  const last = ["training", "waiting", "transfer"].map((part) => columns.get("last_" + part + "_seconds"));
  const reasons = new Map(run.reasons.map(([client, round, reason]) => [client, [round, reason]]));
  const members = run.edges.map(() => []);
  const nowhere = [];
  for (const client of all) (run.edge_of[client] < 0 ? nowhere : members[run.edge_of[client]]).push(client);
  const seconds = at < 0 ? null : seriesOf(run).get("seconds")[at];
  const flat = run.edges.length === 1 && run.edges[0].name === "cloud";
  const cloud = element("li", { class: "cloud" },
    element("div", { class: "node" }, element("b", {}, flat ? "cloud, with all clients" : "cloud"),
      at < 0 ? " before the first round" : element("span", {}, " round " + run.numbers[at] + ", " + shown(seconds, "s")),
      element("span", { class: "counts" }, ...(letters ? counted(letters, all) : []))),
    ...run.cloud_failures.filter(([round]) => round === run.numbers[at]).map(([, reason]) =>
      element("p", { class: "why" }, "it kept its model: " + reason)));
  const list = element("ul", {});
  run.edges.forEach((edge, i) => {
    const series = new Map(edge.series);
    const took = at < 0 ? null : (series.get("seconds") || [])[at];
    const trained = at < 0 ? null : (series.get("trained") || [])[at];
    const what = took === null || took === undefined ? "no update in this round"
      : (trained === 0 ? "nobody's update was used, " : "") + shown(took, "s");
    const details = element("details", { open: open.has(edge.name) },
      element("summary", { class: "node" }, element("b", {}, edge.name), " " + members[i].length + " clients, " + what,
        isLast && edge.seconds.edge_rounds ? element("span", {}, " (", parts([edge.seconds.training_seconds, edge.seconds.waiting_seconds, edge.seconds.transfer_seconds]), ")") : null,
        element("span", { class: "counts" }, ...(letters ? counted(letters, members[i]) : []))));
    const fill = () => {
      if (details.open && details.children.length === 1) details.append(chips(members[i]));
    };
    details.addEventListener("toggle", () => {
      if (details.open) open.add(edge.name);
      else open.delete(edge.name);
      fill();
    });
    fill();
    list.append(element("li", {}, details));

    function chips(clients) {
      const box = element("ul", { class: "chips" });
      const more = (from) => {
        for (const client of clients.slice(from, from + MOST_CHIPS)) box.append(chip(client));
        const left = clients.length - from - MOST_CHIPS;
        if (left > 0) {
          const button = element("button", { type: "button", onclick: () => {
            button.parentElement.remove();
            more(from + MOST_CHIPS);
          } }, left + " more");
          box.append(element("li", {}, button));
        }
      };
      more(0);
      return box;
    }
  });
  if (nowhere.length)
    list.append(element("li", {}, element("div", { class: "node" }, nowhere.length + " clients of which no edge has told yet")));
  cloud.append(list);

  function chip(client) {
    const letter = letters[client] || ".", { sign, words } = SIGNS.get(letter);
    const own = last.map((values) => (values ? values[client] : null));
    const reason = reasons.get(client);
    return element("li", { class: "chip" },
      element("b", { class: "state-" + name(letter) }, sign), " client " + client + ": " + words.split(":")[0],
      isLast && own[0] !== null ? element("span", {}, ", ", parts(own)) : null,
      reason ? element("span", { class: "why" }, " left out in round " + reason[0] + ": " + reason[1]) : null);
  }

  return element("ul", { class: "tree" }, cloud);
}
