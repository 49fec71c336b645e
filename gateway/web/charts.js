// Charts of the last hour: uPlot on /status/history and every sample since.

import { at, h, show } from "./dom.js";
import { number, percent, seconds, short, time } from "./format.js";

const POINTS = 720;
const MOST = 8; // lines in one chart; more could not be distinguished
const SHORTEST = 300; // seconds on the time axis at least

const count = (value) => number(value, Number.isInteger(value) ? 0 : 1);

const CHARTS = [
  { id: "decode", title: "Decode, tok/s", from: "backends", text: short, low: 10 },
  { id: "prefill", title: "Prefill, tok/s", from: "backends", text: short, low: 100 },
  { id: "ttft_p95", title: "Time to first token, p95 of 5 min", from: "backends", text: seconds, low: 0.1 },
  { id: "inflight", title: "Sequences under way", from: "backends", text: count, low: 4 },
  { id: "queue", title: "Waiting for a slot", from: "backends", text: count, low: 4 },
  { id: "kv", title: "KV cache in use", from: "backends", text: percent, most: 1 },
  { id: "prefix_hits", title: "Prefix cache hits, 5 min", from: "backends", text: percent, most: 1 },
  { id: "memory_used", title: "Node memory, GiB", from: "nodes", text: (value) => number(value), low: 16, unit: 1024 ** 3 },
  { id: "temperature", title: "Node temperature, °C", from: "nodes", text: (value) => number(value), low: 50 },
  { id: "requests", title: "Requests per second", from: "gateway", text: (value) => number(value, 1), low: 1 },
];

let history = null;
const hidden = new Set();
const drawn = new Map(); // chart id -> {plot, names}
const dark = matchMedia("(prefers-color-scheme: dark)");
dark.addEventListener("change", () => { forget(); draw(); });

export function setHistory(reply) {
  const length = reply.at.length;
  const padded = (lines) => Object.fromEntries(Object.entries(lines).map(([name, values]) => [name, [...Array(length - values.length).fill(null), ...values]]));
  const each = (group) => Object.fromEntries(Object.entries(group).map(([name, lines]) => [name, padded(lines)]));
  history = { at: [...reply.at], gateway: { gateway: padded(reply.gateway) }, backends: each(reply.backends), nodes: each(reply.nodes) };
  draw();
}

/** Add one sample to every line. */
export function addSample(sample) {
  if (!history || sample.at <= (history.at.at(-1) || 0) + 1) return;
  history.at.push(sample.at);
  add(history.backends, sample.backends);
  add(history.nodes, sample.nodes);
  add(history.gateway, { gateway: sample.gateway });
  if (history.at.length > POINTS) {
    history.at.shift();
    for (const group of [history.backends, history.nodes, history.gateway]) {
      for (const lines of Object.values(group)) for (const values of Object.values(lines)) values.shift();
    }
  }
  draw();
}

function add(group, sample) {
  const before = history.at.length - 1;
  for (const [name, values] of Object.entries(sample)) {
    const lines = (group[name] ||= {});
    for (const [key, value] of Object.entries(values)) {
      if (typeof value === "number" && !lines[key]) lines[key] = Array(before).fill(null);
    }
  }
  for (const [name, lines] of Object.entries(group)) {
    for (const [key, values] of Object.entries(lines)) values.push(sample[name]?.[key] ?? null);
  }
}

export function toggle(name) {
  if (!hidden.delete(name)) hidden.add(name);
  draw();
}

function colour(index) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--c${(index % MOST) + 1}`).trim();
}

const inUnits = (values, unit) => (unit ? values.map((value) => (value === null ? null : value / unit)) : values);
const moves = (values) => values && values.some((value) => value);

/** The series that a chart draws: those with a value above zero, at most the largest few. */
function linesOf(chart) {
  const group = history[chart.from];
  const names = Object.keys(group).sort(chart.from === "nodes" ? undefined : () => 0).filter((name) => moves(group[name][chart.id]) && !(chart.from === "backends" && hidden.has(name)));
  if (names.length <= MOST) return names;
  const largest = (name) => Math.max(...group[name][chart.id].map((value) => value || 0));
  const kept = new Set([...names].sort((a, b) => largest(b) - largest(a)).slice(0, MOST));
  return names.filter((name) => kept.has(name));
}

export function draw() {
  if (!history) return;
  const backends = Object.keys(history.backends);
  const nodes = Object.keys(history.nodes).sort();
  const swatch = (name) => h("button", {
    class: `swatch c${(backends.indexOf(name) % MOST) + 1}`, "data-key": name, "data-action": "toggle", "data-name": name,
    "aria-pressed": String(!hidden.has(name)), title: "show or hide its lines",
  }, name);
  const active = backends.filter((name) => Object.values(history.backends[name]).some(moves));
  show(at("swatches"), active.length > 1 ? active.map(swatch) : null);
  const shown = CHARTS.filter((chart) => Object.values(history[chart.from]).some((lines) => moves(lines[chart.id])));
  if (!shown.length) {
    forget();
    show(at("charts"), h("p", { class: "muted", "data-key": "none" }, "Nothing was measured yet. The first points come after some seconds."));
    return;
  }
  for (const id of [...drawn.keys()]) if (!shown.some((chart) => chart.id === id)) drop(id);
  show(at("charts"), shown.map((chart) => h("figure", { "data-key": chart.id, "data-own": true, id: `chart-${chart.id}` })));
  for (const chart of shown) {
    const all = chart.from === "nodes" ? nodes : chart.from === "backends" ? backends : ["gateway"];
    drawOne(chart, all);
  }
}

function drawOne(chart, all) {
  const names = linesOf(chart);
  const figure = at(`chart-${chart.id}`);
  const group = history[chart.from];
  const data = [history.at, ...names.map((name) => inUnits(group[name][chart.id], chart.unit))];
  const known = drawn.get(chart.id);
  if (known && known.figure === figure && known.names.join("\n") === names.join("\n")) {
    known.plot.setData(data);
    known.tell(null);
    return;
  }
  if (known) drop(chart.id);
  const title = h("span", { class: "title" }, chart.title);
  const readout = h("span", { class: "readout" });
  const place = h("div", { class: "plot", "aria-hidden": "true" });
  figure.replaceChildren(h("figcaption", {}, title, " ", readout), place);
  const tell = (index) => {
    const last = history.at.length - 1;
    const here = index ?? last;
    const parts = names
      .map((name) => [name, inUnits(group[name]?.[chart.id] || [], chart.unit)[here] ?? null])
      .filter(([, value]) => value !== null)
      .map(([name, value]) => (names.length > 1 || chart.from === "nodes" ? `${name} ${chart.text(value)}` : chart.text(value)));
    readout.textContent = `${index === null ? "now" : time(history.at[here])}: ${parts.join(" · ") || "–"}`;
  };
  const style = getComputedStyle(document.documentElement);
  const axis = { stroke: style.getPropertyValue("--muted"), grid: { stroke: style.getPropertyValue("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
  const options = {
    width: Math.max(200, place.clientWidth), height: 120, legend: { show: false }, padding: [6, 18, 0, 0],
    cursor: { sync: { key: "hour" }, drag: { x: false, y: false }, points: { size: 5 } },
    scales: {
      x: { range: (_, first, last) => [Math.min(first, last - SHORTEST), last] },
      y: { range: (_, low, high) => [0, chart.most || Math.max((high || 0) * 1.1, chart.low)] },
    },
    axes: [
      { ...axis, space: 60, size: 22, incrs: [60, 120, 300, 600, 900, 1800], values: (_, splits) => splits.map((value) => time(value).slice(-8, -3)) },
      { ...axis, size: 44, space: 28, values: (_, splits) => splits.map((value) => chart.text(value)) },
    ],
    series: [{}, ...names.map((name) => {
      const index = all.indexOf(name);
      return { stroke: colour(index), width: 1.5, dash: index >= MOST ? [4, 3] : undefined, points: { show: false }, spanGaps: false };
    })],
    hooks: { setCursor: [(plot) => tell(plot.cursor.idx ?? null)] },
  };
  const plot = new uPlot(options, data, place);
  const observer = new ResizeObserver(() => {
    const width = place.clientWidth;
    if (width && Math.abs(width - plot.width) > 1) plot.setSize({ width, height: 120 });
  });
  observer.observe(place);
  drawn.set(chart.id, { plot, names, observer, figure, tell });
  tell(null);
}

function drop(id) {
  const { plot, observer } = drawn.get(id);
  observer.disconnect();
  plot.destroy();
  drawn.delete(id);
}

function forget() {
  for (const id of [...drawn.keys()]) drop(id);
  for (const figure of document.querySelectorAll("#charts figure")) figure.replaceChildren();
}
