// ---- table -----------------------------------------------------------------------------------------------------

function condition(text) {
  const range = text.match(/^\s*(-?[\d.]+)\s*\.\.\s*(-?[\d.]+)\s*$/);
  if (range) return (value) => typeof value === "number" && value >= +range[1] && value <= +range[2];
  const bound = text.match(/^\s*(<=|>=|<|>|=)\s*(-?[\d.]+(?:e[-+]?\d+)?)\s*$/i);
  if (bound) {
    const limit = +bound[2];
    const holds = { "<": (v) => v < limit, "<=": (v) => v <= limit, ">": (v) => v > limit, ">=": (v) => v >= limit, "=": (v) => v === limit }[bound[1]];
    return (value) => typeof value === "number" && holds(value);
  }
  const word = text.trim().toLowerCase();
  return (value) => value != null && String(value).toLowerCase().includes(word);
}

function visible() {
  const tests = Object.entries(state.filters).filter(([, text]) => text.trim()).map(([key, text]) => [key, condition(text)]);
  const words = state.search.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = rowsOf[state.rows].filter((row) => {
    if (!tests.every(([key, test]) => test(row.values[key]))) return false;
    if (!words.length) return true;
    const all = (Object.values(row.values).join(" ") + " " + row.text).toLowerCase();
    return words.every((word) => all.includes(word));
  });
  if (state.sort) {
    const { key, down } = state.sort;
    const place = (row) => row.values[key];
    rows.sort((one, other) => {
      const [a, b] = [place(one), place(other)];
      if (a == null || b == null) return (a == null) - (b == null); // what has no value stands last either way
      const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
      return down ? -order : order;
    });
  }
  return rows;
}

function showTableHead() {
  const names = make("tr", {}, make("th", { scope: "col" }, make("span", { class: "hidden" }, "side by side")));
  const fields = make("tr", { class: "filters" }, make("th"));
  for (const column of columns()) {
    const { key, label, title, word } = column;
    const sorted = state.sort && state.sort.key === key ? (state.sort.down ? "descending" : "ascending") : "none";
    const button = make("button", { type: "button", title: title || label, onclick: () => sortBy(key) }, label);
    names.append(make("th", { scope: "col", class: word ? "word" : "", "aria-sort": sorted, "data-key": key }, button));
    const field = make("input", { type: "text", "aria-label": `filter ${label}`, "data-filter": key });
    field.value = state.filters[key] || "";
    field.addEventListener("input", () => { state.filters[key] = field.value; showTableBody(); });
    fields.append(make("th", { class: word ? "word" : "" }, field));
  }
  $("table").tHead.replaceChildren(names, fields);
  fields.style.setProperty("--top", names.offsetHeight + "px");
  for (const cell of fields.children) cell.style.top = names.offsetHeight + "px";
}

function sortBy(key) {
  const same = state.sort && state.sort.key === key;
  state.sort = same && state.sort.down ? null : { key, down: same };
  for (const heading of $("table").tHead.rows[0].querySelectorAll("[data-key]")) {
    const sorted = state.sort && heading.dataset.key === state.sort.key;
    heading.setAttribute("aria-sort", sorted ? (state.sort.down ? "descending" : "ascending") : "none");
  }
  showTableBody();
}

function best(rows, column) {
  const values = rows.map((row) => row.values[column.key]).filter((value) => typeof value === "number");
  if (!column.better || new Set(values).size < 2) return null;
  const top = column.better === "high" ? Math.max(...values) : Math.min(...values);
  return values.filter((value) => value === top).length <= values.length / 2 ? top : null; // what most have is no merit
}

function showTableBody() {
  const rows = visible(), shown = columns(), body = document.createDocumentFragment();
  const tops = new Map(shown.map((column) => [column.key, best(rows, column)]));
  for (const row of rows) {
    const chosen = state.chosen[state.rows].has(row.id);
    const tick = make("input", { type: "checkbox", "aria-label": `side by side: ${row.values.name} ${describe(row.point)}` });
    tick.checked = chosen;
    tick.addEventListener("change", () => toggle(row.id));
    const line = make("tr", { class: chosen ? "chosen" : "", "data-id": row.id }, make("td", {}, tick));
    line.addEventListener("click", (event) => { if (event.target !== tick) toggle(row.id); });
    for (const column of shown) {
      const value = row.values[column.key];
      const text = column.given ? given(value) : figure(value, column.unit);
      const classes = [column.word ? "word" : "", column.long ? "long" : "", value != null && value === tops.get(column.key) ? "best" : ""];
      const content = column.key === "status" ? make("span", { class: `status ${value}` }, text) : text;
      line.append(make("td", { class: classes.join(" ").trim(), title: column.long ? text : null, "data-key": column.key }, content));
    }
    body.append(line);
  }
  if (!rows.length) body.append(make("tr", {}, make("td", { colspan: shown.length + 1, class: "empty word" }, "nothing fits these filters")));
  $("table").tBodies[0].replaceChildren(body);
  $("count").textContent = `${rows.length} of ${rowsOf[state.rows].length}`;
}

function setRows(kind) {
  if (state.rows === kind) return;
  state.rows = kind;
  state.filters = {};
  if (state.sort && !columns().some((column) => column.key === state.sort.key)) state.sort = null;
  showAll();
}

function toggle(id) {
  const chosen = state.chosen[state.rows];
  if (!chosen.delete(id)) chosen.add(id);
  for (const line of $("table").tBodies[0].querySelectorAll("tr[data-id]")) {
    const on = chosen.has(+line.dataset.id);
    line.classList.toggle("chosen", on);
    line.querySelector("input").checked = on;
  }
  for (const circle of document.querySelectorAll("#plot .dot")) {
    circle.classList.toggle("chosen", state.chosen.point.has(+circle.dataset.point));
  }
  showCards();
}
