// A table of any length: one page of its rows is in the document. A click on a head sorts, the fields filter.

const ROWS = 50;

function dataTable(title) {
  const state = { columns: [], sort: null, up: true, page: 0, text: "", column: "", least: "", most: "" };
  const body = element("tbody"), head = element("thead"), foot = element("p", { class: "note", "aria-live": "polite" });
  const number = (name) =>
    element("input", { type: "number", step: "any", placeholder: name, "aria-label": title + ": " + name,
      oninput: (event) => change({ [name]: event.target.value }) });
  const select = element("select", { "aria-label": title + ": column", onchange: () => change({ column: select.value }) });
  const search = element("input", { type: "search", placeholder: "find a text", "aria-label": title + ": find a text",
    oninput: (event) => change({ text: event.target.value }) });
  const turn = (by) => () => change({ page: Math.max(state.page + by, 0) }, true);
  const box = element("div", { class: "table-box" },
    element("div", { class: "tools" }, search, element("label", { class: "choice" }, "where ", select), number("least"), number("most"),
      element("button", { type: "button", onclick: turn(-1) }, "‹ earlier"), element("button", { type: "button", onclick: turn(1) }, "later ›")),
    foot,
    element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title },
      element("table", {}, head, body)));

  function change(what, keepsPage) {
    Object.assign(state, what);
    if (!keepsPage) state.page = 0;
    draw();
  }

  function rowsLeft() {
    const columns = state.columns;
    const count = columns.length ? columns[0][1].length : 0;
    const text = state.text.toLowerCase();
    const chosen = columns.find(([name]) => name === state.column);
    const least = state.least === "" ? -Infinity : Number(state.least), most = state.most === "" ? Infinity : Number(state.most);
    const bounded = chosen && (least !== -Infinity || most !== Infinity);
    const texts = columns.filter(([, values]) => values.some((value) => typeof value === "string"));
    const rows = [];
    for (let i = 0; i < count; i++) {
      if (bounded) {
        const value = chosen[1][i];
        if (typeof value !== "number" || value < least || value > most) continue;
      }
      if (text && !texts.some(([, values]) => String(values[i]).toLowerCase().includes(text)) &&
        String(columns[0][1][i]) !== text) continue;
      rows.push(i);
    }
    const by = columns.find(([name]) => name === state.sort);
    if (by) {
      const sign = state.up ? 1 : -1;
      const none = (value) => value === null || value === undefined || value === "";
      rows.sort((a, b) => {
        const x = by[1][a], y = by[1][b];
        if (none(x) || none(y)) return none(x) - none(y) || a - b;
        if (typeof x === "number" && typeof y === "number") return sign * (x - y) || a - b;
        return sign * String(x).localeCompare(String(y)) || a - b;
      });
    }
    return rows;
  }

  function draw() {
    const rows = rowsLeft();
    const last = Math.max(Math.ceil(rows.length / ROWS) - 1, 0);
    state.page = Math.min(state.page, last);
    head.replaceChildren(element("tr", {}, ...state.columns.map(([name]) => {
      const unit = unitOf(name), sorted = state.sort === name;
      const mark = sorted ? (state.up ? " ▲" : " ▼") : "";
      const told = () => change(sorted ? { up: !state.up } : { sort: name, up: true });
      return element("th", { scope: "col", "aria-sort": sorted ? (state.up ? "ascending" : "descending") : "none" },
        element("button", { type: "button", "data-column": name, onclick: told }, inWords(name) + (unit ? " (" + unit + ")" : "") + mark));
    })));
    const from = state.page * ROWS;
    body.replaceChildren(...rows.slice(from, from + ROWS).map((i) =>
      element("tr", {}, ...state.columns.map(([name, values]) => {
        const value = values[i];
        return element("td", { class: typeof value === "number" ? "number" : String(value).length > 40 ? "long" : "" }, shown(value, unitOf(name)));
      }))));
    const count = state.columns.length ? state.columns[0][1].length : 0;
    const range = rows.length ? from + 1 + "–" + Math.min(from + ROWS, rows.length) + " of " : "";
    foot.textContent = range + rows.length + " rows" + (rows.length < count ? ", of " + count + " in all" : "");
  }

  box.show = (columns) => {
    state.columns = columns;
    const numbers = columns.filter(([, values]) => values.some((value) => typeof value === "number"));
    refill(select, [["", "any column"], ...numbers.map(([name]) => [name, inWords(name)])], state.column);
    draw();
  };
  return box;
}
