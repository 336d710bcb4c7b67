// ---- plot ------------------------------------------------------------------------------------------------------

function option(value, label) { return make("option", { value }, label); }

function startPlot() {
  if (!parameters.length || !metrics.length) { $("plot-section").remove(); return; }
  $("plot-y").append(...metrics.map((metric) => option(metric.name, metric.label)));
  $("plot-x").append(...parameters.map(({ key, short }) => option(key, short)));
  $("plot-by").append(option("", "(all together)"), ...parameters.map(({ key, short }) => option(key, short)));
  $("plot-by-label").hidden = parameters.length < 2;
  $("plot-by").value = parameters.length > 1 ? parameters[1].key : "";
  const wanted = ["wer", "rtf", "tokens_per_s", "audio_s"].find((name) => metrics.some((metric) => metric.name === name));
  if (wanted) $("plot-y").value = wanted;
  for (const id of ["plot-y", "plot-x", "plot-by"]) $(id).addEventListener("change", showPlot);
  new ResizeObserver(showPlot).observe($("plot"));
  showPlot();
}

function ticks(low, high, count = 5) {
  const step = 10 ** Math.floor(Math.log10((high - low) / count));
  const width = step * ([1, 2, 5, 10].find((factor) => (high - low) / (step * factor) <= count) || 10);
  const found = [];
  for (let tick = Math.ceil(low / width - 1e-9) * width; tick <= high + width * 1e-9; tick += width) found.push(tick);
  return found;
}

function showPlot() {
  if (!$("plot")) return;
  const metric = metrics.find((item) => item.name === $("plot-y").value);
  const x = $("plot-x").value;
  const by = $("plot-by").value === x ? "" : $("plot-by").value;
  const better = { high: ", more is better", low: ", less is better", "": "" }[metric.better];
  $("plot-about").textContent = `${metric.about}${better}. A click on a dot puts its point below.`;
  const width = Math.max(320, $("plot").clientWidth), height = 320, left = 62, right = 18, top = 12, bottom = 42;
  const values = [...new Set(data.points.map((point) => point.values[x]))];
  const numeric = values.every((value) => typeof value === "number");
  values.sort((a, b) => numeric ? a - b : String(a).localeCompare(String(b)));
  const shown = data.points.filter((point) => typeof point.numbers[metric.name] === "number");
  const heights = shown.map((point) => point.numbers[metric.name]);
  let low = Math.min(...heights, Infinity), high = Math.max(...heights, -Infinity);
  if (!heights.length) [low, high] = [0, 1];
  if (low > 0 && low < 0.6 * high) low = 0;
  if (low === high) [low, high] = [low - Math.abs(low || 1) * 0.1, high + Math.abs(high || 1) * 0.1];
  const span = high - low;
  const [bottomValue, topValue] = [low === 0 ? 0 : low - span * 0.06, high + span * 0.06];
  const [first, last] = [values[0], values[values.length - 1]];
  const atX = (value) => numeric && values.length > 1
    ? left + 24 + (width - left - right - 48) * (value - first) / (last - first)
    : left + (width - left - right) * (values.indexOf(value) + 0.5) / values.length;
  const atY = (value) => height - bottom - (height - top - bottom) * (value - bottomValue) / (topValue - bottomValue);
  const picture = svg("svg", { role: "group", "aria-label": `${metric.label} over ${x}`, viewBox: `0 0 ${width} ${height}` });
  const share = metric.unit === "share";
  for (const tick of ticks(bottomValue, topValue)) {
    picture.append(
      svg("line", { class: "grid", x1: left, x2: width - right, y1: atY(tick), y2: atY(tick) }),
      svg("text", { x: left - 9, y: atY(tick) + 4, "text-anchor": "end" }, share ? tidy(100 * tick) + " %" : tidy(tick)),
    );
  }
  picture.append(svg("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }));
  let free = -Infinity;
  for (const value of values) {
    const label = given(value).slice(0, 24), middle = atX(value);
    if (middle - 3.5 * label.length < free) continue; // no label over another
    free = middle + 3.5 * label.length + 8;
    picture.append(svg("text", { x: middle, y: height - bottom + 18, "text-anchor": "middle" }, label));
  }
  const short = parameters.find(({ key }) => key === x).short;
  picture.append(svg("text", { x: (left + width - right) / 2, y: height - 5, "text-anchor": "middle" }, short));
  const groups = by ? [...new Set(data.points.map((point) => point.values[by]))] : [null];
  for (const [number, group] of groups.entries()) {
    const color = COLORS[number % COLORS.length];
    const members = shown.filter((point) => !by || point.values[by] === group);
    const means = values.flatMap((value) => {
      const here = members.filter((point) => point.values[x] === value).map((point) => point.numbers[metric.name]);
      return here.length ? [[atX(value), atY(here.reduce((a, b) => a + b) / here.length)]] : [];
    });
    if (means.length > 1) {
      picture.append(svg("path", { class: "mean", stroke: color, d: "M" + means.map((pair) => pair.join(",")).join("L") }));
    }
    for (const point of members) picture.append(dot(point, metric, atX(point.values[x]), atY(point.numbers[metric.name]), color));
  }
  for (const point of data.points.filter((item) => item.status !== "ok")) {
    const [cx, cy] = [atX(point.values[x]), height - bottom];
    const cross = svg("path", { class: "cross", d: `M${cx - 5},${cy - 5}l10,10m0,-10l-10,10` });
    hint(cross, `${describe(point)}\n${point.status}: ${point.error}`);
    picture.append(cross);
  }
  const legend = make("div", { class: "legend" });
  if (by) {
    legend.append(...groups.map((group, number) => make("span", {},
      make("i", { style: `background:${COLORS[number % COLORS.length]}` }), `${parameters.find(({ key }) => key === by).short} ${given(group)}`)));
  }
  $("plot").replaceChildren(picture, legend);
}

function dot(point, metric, cx, cy, color) {
  const said = `${describe(point)}\n${metric.label} ${figure(point.numbers[metric.name], metric.unit)}`;
  const choose = () => { setRows("point"); toggle(point.number); };
  const circle = svg("circle", {
    class: state.chosen.point.has(point.number) ? "dot chosen" : "dot", cx, cy, r: 6, fill: color, tabindex: 0,
    role: "button", "data-point": point.number, "aria-label": said.replace("\n", ": "), onclick: choose,
    onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(); } },
  });
  hint(circle, said);
  return circle;
}

function describe(point) {
  return parameters.map(({ key, short }) => `${short} ${given(point.values[key])}`).join(", ") || point.name;
}

const tip = make("div", { id: "tip", role: "tooltip", hidden: true });
document.body.append(tip);
function hint(element, text) {
  const show = () => {
    const box = element.getBoundingClientRect();
    tip.textContent = text;
    tip.hidden = false;
    tip.style.left = Math.min(box.right + 8, innerWidth - tip.offsetWidth - 8) + "px";
    tip.style.top = Math.max(8, box.top - tip.offsetHeight - 6) + "px";
  };
  const hide = () => { tip.hidden = true; };
  for (const event of ["mouseenter", "focus"]) element.addEventListener(event, show);
  for (const event of ["mouseleave", "blur"]) element.addEventListener(event, hide);
}
