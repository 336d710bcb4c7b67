"use strict";
// The page of a sweep. All it shows is in the element #data; text enters the page as text only, never as markup.

const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const COLORS = ["#5b60d6", "#e0772b", "#2f9e6b", "#c2488f", "#3a91c9", "#b09a2e", "#8a63c9", "#d1515a"];

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value != null) element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

function figure(value, unit = "") {
  if (value == null || value === "") return "–";
  if (typeof value !== "number") return String(value);
  if (unit === "share") return (100 * value).toFixed(Math.abs(value) < 0.1 ? 1 : 0) + " %";
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return String(value);
  const size = Math.abs(value);
  if (size < 0.0005) return "0";
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3);
}

// A value of a setting, as it was given.
function given(value) { return typeof value === "number" ? tidy(value) : figure(value); }

function tidy(value) { return String(Number(value.toPrecision(6))); }

// ---- what is shown ---------------------------------------------------------------------------------------------

const parameters = data.parameters;
const metrics = data.metrics;
const single = data.points.length === 1;
const state = {
  rows: single ? "request" : "point",
  sort: null, // {key, down}
  filters: {},
  search: "",
  request: 0,
  chosen: { point: new Set(), request: new Set() },
};

for (const [number, cell] of data.cells.entries()) cell.number = number;
for (const [number, point] of data.points.entries()) {
  point.number = number;
  point.cells = data.cells.filter((cell) => cell.point === number);
}
const requests = [...new Set(data.cells.map((cell) => cell.index))].sort((a, b) => a - b);

const rowsOf = {
  point: data.points.map((point) => ({
    id: point.number, point, status: point.status, text: point.cells.map((cell) => cell.text + cell.prompt).join(" "),
    values: {
      name: point.name, status: point.status, ...point.values, ...point.numbers, requests: point.cells.length,
      ok: point.cells.filter((cell) => cell.ok).length, finish: point.finish, error: point.error,
    },
  })),
  request: data.cells.map((cell) => ({
    id: cell.number, point: data.points[cell.point], status: cell.ok ? "ok" : "failed", text: cell.text + cell.prompt,
    values: {
      name: data.points[cell.point].name, request: cell.index, status: cell.ok ? "ok" : "failed",
      ...data.points[cell.point].values, ...cell.numbers, reply: cell.text, finish: cell.finish, error: cell.error,
    },
  })),
};

function columns() {
  const has = (key) => rowsOf[state.rows].some((row) => row.values[key] != null && row.values[key] !== "");
  const word = (key) => rowsOf[state.rows].some((row) => typeof row.values[key] === "string");
  return [
    { key: "name", label: "point", word: true },
    ...parameters.map(({ key, short }) => ({ key, label: short, title: key, word: word(key), given: true })),
    ...(state.rows === "request" ? [{ key: "request", label: "request" }] : []),
    { key: "status", label: "status", word: true },
    ...(state.rows === "point" && requests.length > 1 ? [{ key: "ok", label: "ok" }, { key: "requests", label: "of" }] : []),
    ...metrics.map((metric) => ({ ...metric, key: metric.name, label: metric.label, title: metric.about })),
    { key: "finish", label: "finish", word: true },
    ...(state.rows === "request" ? [{ key: "reply", label: "reply", word: true, long: true }] : []),
    { key: "error", label: "error", word: true, long: true },
  ].filter((column) => ["name", "status"].includes(column.key) || has(column.key));
}

// ---- head ------------------------------------------------------------------------------------------------------

function chips(entries) {
  return entries.map(([key, value]) => make("li", { title: key }, make("b", {}, key), given(value)));
}

function showHead() {
  $("title").textContent = data.title;
  const failed = data.points.filter((point) => point.status !== "ok").length;
  const parts = [
    `${data.points.length} ${single ? "point" : "points"}`,
    `${data.cells.length} ${data.cells.length === 1 ? "request" : "requests"}`,
    failed ? `${failed} not ok` : "all ok",
    data.when,
    data.folder,
  ];
  $("summary").textContent = parts.filter(Boolean).join("  ·  ");
  $("fixed").append(...chips(Object.entries(data.fixed)));
  $("sounds").textContent = data.sounds;
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
}

function startTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let own = null;
  try { own = localStorage.getItem("multistage-theme"); } catch { /* a browser that keeps nothing for files */ }
  setTheme(own || (dark.matches ? "dark" : "light"));
  dark.addEventListener("change", () => { if (!own) setTheme(dark.matches ? "dark" : "light"); });
  $("theme").addEventListener("click", () => {
    own = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    setTheme(own);
    try { localStorage.setItem("multistage-theme", own); } catch { /* as above */ }
  });
}
