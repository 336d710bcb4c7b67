// ---- side by side ----------------------------------------------------------------------------------------------

// Words of `to`, each with whether `from` has it in the same order; and those of `from` that `to` lacks, where they were.
function differences(from, to) {
  const a = from.match(/\s*\S+/g) || [], b = to.match(/\s*\S+/g) || [];
  const same = (x, y) => x.trim() === y.trim();
  let start = 0, end = 0;
  while (start < a.length && start < b.length && same(a[start], b[start])) start++;
  while (end < a.length - start && end < b.length - start && same(a[a.length - 1 - end], b[b.length - 1 - end])) end++;
  const [n, m] = [a.length - start - end, b.length - start - end];
  const parts = b.slice(0, start).map((text) => ({ text }));
  if (n * m > 4e6) {
    parts.push(...b.slice(start, start + m).map((text) => ({ text, kind: "ins" })));
  } else {
    const table = Array.from({ length: n + 1 }, () => new Uint16Array(m + 1)); // longest common subsequence of the rests
    for (let i = n - 1; i >= 0; i--) {
      for (let j = m - 1; j >= 0; j--) {
        table[i][j] = same(a[start + i], b[start + j]) ? table[i + 1][j + 1] + 1 : Math.max(table[i + 1][j], table[i][j + 1]);
      }
    }
    let i = 0, j = 0;
    while (i < n || j < m) {
      if (i < n && j < m && same(a[start + i], b[start + j])) { parts.push({ text: b[start + j++] }); i++; }
      else if (i < n && (j >= m || table[i + 1][j] >= table[i][j + 1])) parts.push({ text: a[start + i++], kind: "del" });
      else parts.push({ text: b[start + j++], kind: "ins" });
    }
  }
  parts.push(...b.slice(start + m).map((text) => ({ text })));
  return parts;
}

function marked(from, to, gone = false) {
  const joined = [];
  for (const part of differences(from, to).filter((item) => gone || item.kind !== "del")) {
    const last = joined[joined.length - 1];
    if (last && last.kind === part.kind) last.text += part.text;
    else joined.push({ ...part });
  }
  return joined.flatMap(({ text, kind }) => {
    if (!kind) return [text];
    const space = text.match(/^\s*/)[0];
    return [space, make(kind, {}, text.slice(space.length))];
  });
}

function chosenCells() {
  const ids = [...state.chosen[state.rows]].sort((a, b) => a - b);
  if (state.rows === "request") return ids.map((id) => [data.points[data.cells[id].point], data.cells[id]]);
  return ids.map((id) => [data.points[id], data.points[id].cells.find((cell) => cell.index === state.request)]);
}

function showCards() {
  stop();
  const pairs = chosenCells();
  $("request-picker").hidden = state.rows === "request" || requests.length < 2;
  const prompts = new Set(pairs.map(([, cell]) => cell && cell.prompt));
  $("prompt").textContent = prompts.size === 1 ? [...prompts][0] || "" : "";
  const reference = pairs.length && pairs[0][1] ? pairs[0][1].text : "";
  $("cards").replaceChildren(...pairs.map(([point, cell], place) => card(point, cell, place, reference, prompts.size > 1)));
  if (!pairs.length) $("cards").append(make("p", { class: "empty" }, "Tick rows of the table, or click dots of the plot, to read and hear them here."));
}

function card(point, cell, place, reference, ownPrompt) {
  const status = cell ? (cell.ok ? "ok" : "failed") : point.status;
  const heading = make("h3", {}, `point ${point.name}`, make("span", { class: `status ${status}` }, status));
  const settings = parameters.map(({ key, short }) => make("li", { title: key }, make("b", {}, short), given(point.values[key])));
  const box = make("article", { class: "card", "data-point": point.number }, heading, make("ul", { class: "chips" }, ...settings));
  if (!cell) {
    box.append(make("p", { class: "bad text" }, point.error || "it has no such request"));
    return box;
  }
  if (ownPrompt && cell.prompt) box.append(make("p", { class: "quiet small text" }, cell.prompt));
  const compare = place > 0 && $("differences").checked;
  if (cell.text) box.append(make("p", { class: "text reply" }, ...(compare ? marked(reference, cell.text) : [cell.text])));
  if (cell.error) box.append(make("p", { class: "bad text" }, cell.error));
  if (cell.sound) box.append(player(cell));
  if (cell.heard != null) {
    box.append(make("p", { class: "heard" }, "heard: ", ...marked(plain(cell.spoken), plain(cell.heard), true)));
  }
  if (cell.frames) box.append(make("div", { class: "strip" }, ...cell.frames.map((source, number) => make("img", { src: source, alt: `frame ${number + 1}` }))));
  const numbers = metrics.filter(({ name }) => cell.numbers[name] != null);
  box.append(make("dl", {}, ...numbers.map((metric) => make("div", { title: metric.about },
    make("dt", {}, metric.label), make("dd", {}, figure(cell.numbers[metric.name], metric.unit)))),
    cell.finish ? make("div", { class: "wide" }, make("dt", {}, "finish"), make("dd", {}, cell.finish)) : null));
  return box;
}

function plain(text) { return (text.toLowerCase().match(/[\p{L}\p{N}]+(?:['’][\p{L}\p{N}]+)*/gu) || []).join(" "); }
