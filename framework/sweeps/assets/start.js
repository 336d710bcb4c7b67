// ---- together --------------------------------------------------------------------------------------------------

function showAll() {
  for (const [id, kind] of [["by-point", "point"], ["by-request", "request"]]) $(id).setAttribute("aria-pressed", state.rows === kind);
  showTableHead();
  showTableBody();
  showCards();
}

function startRequests() {
  const label = (index) => {
    const cell = data.cells.find((item) => item.index === index);
    return `${index}  ${(cell.prompt || cell.text).replace(/\s+/g, " ").slice(0, 60)}`;
  };
  $("request").append(...requests.map((index) => option(index, label(index))));
  state.request = requests[0] ?? 0;
  const go = (step) => {
    const place = requests.indexOf(state.request) + step;
    state.request = requests[Math.max(0, Math.min(requests.length - 1, place))];
    $("request").value = state.request;
    showCards();
  };
  $("previous").addEventListener("click", () => go(-1));
  $("next").addEventListener("click", () => go(1));
  $("request").addEventListener("change", () => { state.request = +$("request").value; showCards(); });
}

$("by-point").addEventListener("click", () => setRows("point"));
$("by-request").addEventListener("click", () => setRows("request"));
$("search").addEventListener("input", () => { state.search = $("search").value; showTableBody(); });
$("clear").addEventListener("click", () => { state.filters = {}; state.search = $("search").value = ""; state.sort = null; showTableHead(); showTableBody(); });
$("differences").addEventListener("change", showCards);
startTheme();
showHead();
startRequests();
for (const point of data.points.filter((item) => item.cells.length).slice(0, 3)) state.chosen.point.add(point.number);
for (const cell of data.cells.slice(0, 3)) state.chosen.request.add(cell.number);
showAll();
startPlot();
document.documentElement.dataset.ready = "";
