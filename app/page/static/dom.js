// Elements. All text goes through text nodes: nothing that a run says is read as HTML.

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function svg(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// A select with values and what stands for them; `told` gets the one that was chosen.
function choice(label, options, chosen, told) {
  const select = element("select", { "aria-label": label, onchange: () => told(select.value) });
  refill(select, options, chosen);
  return element("label", { class: "choice" }, label + " ", select);
}

function refill(select, options, chosen) {
  select.replaceChildren(
    ...options.map(([value, shown]) => element("option", { value, selected: String(value) === String(chosen) }, shown)),
  );
}

function section(id, title, ...children) {
  return element("section", { id, "aria-label": title }, element("h2", {}, title), ...children);
}
