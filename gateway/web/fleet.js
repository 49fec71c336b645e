// Nodes and backends: a group of rows per machine.

import { badge, cell, h, meter, rowHead, table } from "./dom.js";
import { DASH, gibibytes, number, percent, seconds, short, span, time } from "./format.js";

/** State -> [level, mark]: colour is never the only sign. */
export const MARKS = {
  unknown: ["off", "?"],
  warming: ["warn", "◔"],
  ready: ["ok", "●"],
  busy: ["ok", "◆"],
  suspect: ["warn", "!"],
  down: ["bad", "✕"],
  draining: ["off", "◌"],
  misconfigured: ["bad", "✕"],
  parked: ["off", "○"],
};
const NODE_MARKS = { up: ["ok", "●"], down: ["bad", "✕"], unknown: ["off", "?"] };

const HEAD = ["Backend", "State", "Slots", "Queue", "Decode", "Prefill", "First token", "KV cache", "Prefix hits", "Drafts", ""];
const UNITS = { Decode: "tok/s", Prefill: "tok/s", "First token": "p50 / p95", "Prefix hits": "5 min", Drafts: "accepted" };

export function fleetOf(status, pending) {
  const groups = groupsOf(status);
  if (!Object.keys(status.backends).length) return h("p", { class: "muted" }, "routes.yaml has no backends.");
  const head = HEAD.map((name) => (UNITS[name] ? [name, " ", h("span", { class: "unit" }, UNITS[name])] : name));
  const bodies = groups.map(({ title, nodes, names, header }) =>
    h(
      "tbody", { role: "rowgroup", "data-key": title },
      header ? h("tr", { role: "row", class: "group" }, h("th", { role: "rowheader", scope: "rowgroup", colspan: HEAD.length },
        groupHead(title, nodes, status))) : null,
      names.map((name) => row(name, status.backends[name], status, pending)),
    ),
  );
  return table({ class: "cards fleet" }, head, bodies);
}

/** Groups of backends: machines in the order of routes.yaml, several machines, no machine, clouds. */
function groupsOf(status) {
  const nodes = Object.keys(status.nodes);
  const groups = new Map(nodes.map((name) => [name, { title: name, nodes: [name], names: [], header: true }]));
  for (const [name, backend] of Object.entries(status.backends)) {
    const title = backend.cloud ? "Cloud" : backend.nodes.length ? backend.nodes.join(" + ") : "Other";
    if (!groups.has(title)) groups.set(title, { title, nodes: backend.nodes, names: [], header: true });
    groups.get(title).names.push(name);
  }
  const found = [...groups.values()];
  const late = (group) => (group.title === "Cloud" ? 2 : group.title === "Other" ? 1 : 0);
  found.sort((a, b) => late(a) - late(b));
  if (found.length === 1 && !nodes.length) found[0].header = false;
  return found;
}

function groupHead(title, names, status) {
  const node = names.length === 1 ? status.nodes[names[0]] : null;
  if (!node) return h("span", { class: "node" }, h("span", { class: "node-name" }, title));
  const total = node.memory_total || node.memory;
  const numbers = [];
  if (node.memory_used !== null && total) {
    const text = `${gibibytes(node.memory_used)} of ${gibibytes(total)} GiB`;
    numbers.push(h("span", { class: "fact" }, "memory ", meter(node.memory_used / total, text, "memory in use", 0.94, 0.98)));
  } else if (total) {
    numbers.push(h("span", { class: "fact" }, `memory ${gibibytes(total)} GiB`));
  }
  if (node.temperature !== null) {
    const heat = node.temperature >= 90 ? "bad" : node.temperature >= 80 ? "warn" : "";
    numbers.push(h("span", { class: `fact ${heat}` }, `${number(node.temperature)} °C`));
  }
  if (node.gpu !== null) numbers.push(h("span", { class: "fact" }, `GPU ${percent(node.gpu)}`));
  if (node.power !== null) numbers.push(h("span", { class: "fact" }, `${number(node.power)} W`));
  return h(
    "span", { class: "node" },
    h("span", { class: "node-name" }, title),
    badge(NODE_MARKS[node.state], node.state, node.why),
    node.state === "up" ? null : h("span", { class: "why" }, node.why),
    numbers,
  );
}

/** "rust front end", where it is another than the engine's usual one. */
const frontEnd = ({ front_end: name }) => (name && name !== "python" ? `${name} front end` : null);

function row(name, backend, status, pending) {
  const [level] = MARKS[backend.state];
  const away = GONE.has(backend.state) && !backend.inflight && !backend.queue; // its last rates are not current
  const now = away ? { ...backend.now, decode: null, prefill: null } : backend.now;
  const used = backend.inflight + backend.elsewhere + backend.foreign;
  const slots = backend.slots === null ? `${used}` : `${used} / ${backend.slots}`;
  const server = [backend.server === backend.engine ? null : backend.server, frontEnd(backend)].filter(Boolean).join(", ");
  const kind = server ? `${backend.engine} (${server})` : backend.engine;
  const about = [kind, backend.model, backend.window ? `${short(backend.window)} window` : null];
  const explained = backend.state !== "ready" && backend.state !== "busy";
  return h(
    "tr", { role: "row", "data-key": name, "data-backend": name, class: level === "bad" || level === "warn" ? `hot ${level}` : null },
    rowHead({ class: "name" }, name, h("div", { class: "muted small about", title: [about.filter(Boolean).join(", "), ...flags(backend)].join("\n") }, about.filter(Boolean).join(", "))),
    cell(
      "State", { class: "state" },
      badge(MARKS[backend.state], backend.state, backend.reason),
      h("span", { class: "small muted", title: `since ${time(backend.since)}` }, ` ${span(status.now - backend.since)}`),
      explained ? h("div", { class: "why" }, backend.reason) : null,
      troubleOf(backend.trouble),
      held(backend, status),
      idle(backend),
      learned(backend, status),
      backend.drift.length ? h("div", { class: "why" }, h("strong", {}, "drift: "), backend.drift.join("; ")) : null,
    ),
    cell("Slots", { class: "num" }, away ? `${DASH} / ${backend.slots ?? DASH}` : backend.slots === null ? slots : meter(used / backend.slots, slots, slotsTitle(backend), 1, 2), away ? null : sharing(backend, status)),
    cell("Queue", { class: `num ${backend.queue ? "warn" : ""}` }, away ? DASH : number(backend.queue)),
    cell("Decode tok/s", { class: "num", title: rateTitle(now, backend.learned.decode_rate) }, rate(now, "decode")),
    cell("Prefill tok/s", { class: "num", title: rateTitle(now, backend.learned.prefill_rate) }, rate(now, "prefill")),
    cell("First token p50 / p95", { class: "num" }, `${seconds(now.ttft_p50)} / ${seconds(now.ttft_p95)}`),
    cell("KV cache", { class: "num" }, present(now.kv) ? meter(now.kv, percent(now.kv), "KV cache in use") : DASH),
    cell("Prefix hits, 5 min", { class: "num" }, percent(now.prefix_hits)),
    cell("Drafts accepted", { class: "num" }, drafts(now.accepted || [])),
    cell("", { class: "actions" }, status.you.admin ? buttons(name, backend, pending) : null),
  );
}

/** The last words of an engine that is out, what they mean, and what mends it. */
function troubleOf(trouble) {
  if (!trouble) return null;
  return h("div", { class: "why" },
    h("div", {}, trouble.unit),
    trouble.cause ? h("div", {}, h("strong", {}, "likely: "), trouble.cause) : null,
    h("div", {}, h("strong", {}, "what to do: "), h("code", {}, trouble.mend)),
    trouble.words.length ? h("pre", { class: "small output" }, trouble.words.join("\n")) : null);
}

/** What a server that loads on demand has of the model in memory, and until when. */
function held(backend, status) {
  const model = backend.held;
  if (!model || !present(model.loaded)) return null;
  const last = present(model.load_seconds) ? `its last load took ${span(model.load_seconds)}` : null;
  if (!model.loaded) return h("div", { class: "small muted" }, ["not loaded", last].filter(Boolean).join(", "));
  const left = present(model.until) ? Math.max(0, model.until - status.now) : null;
  const size = present(model.bytes) ? `${(model.bytes / 2 ** 30).toFixed(1)} GiB` : null;
  const until = left === null ? null : `for ${span(left)} more`;
  return h("div", { class: "small muted", title: last }, ["loaded", model.window ? `${short(model.window)} window` : null, size, until].filter(Boolean).join(", "));
}

/** For how long a backend that requests start has had no request. */
const idle = (backend) =>
  present(backend.idle) && backend.idle >= 60 && !backend.inflight ? h("div", { class: "small muted" }, `on request, idle for ${span(backend.idle)}`) : null;

/** The flags that the engine reports, a line each. */
function flags(backend) {
  const known = Object.entries(backend.flags).map(([flag, value]) => `${flag}: ${value}`);
  return known.length || backend.front_end !== "rust" ? known : ["its Rust front end does not tell its flags, its cache and its start"];
}

/** The gateway counts tokens when an answer ends, so its own rates are estimates. */
const rate = (now, key) => (now.from === "gateway" && now[key] ? `≈ ${short(now[key])}` : short(now[key]));
const GONE = new Set(["parked", "down", "misconfigured"]);

const present = (value) => value !== null && value !== undefined;

function slotsTitle(backend) {
  const elsewhere = backend.elsewhere ? `, ${backend.elsewhere} of other gateways` : "";
  const others = backend.foreign ? `, ${backend.foreign} of others` : "";
  return `${backend.inflight} of ours${elsewhere}${others}${backend.slots_reason ? `; slots: ${backend.slots_reason}` : ""}`;
}

/** The slots that other gateways hold; while they are unreachable, this gateway's share. */
function sharing(backend, status) {
  if (!status.shared || backend.room === null) return null;
  const text = !status.shared.joined ? `share: ${backend.room}` : backend.elsewhere ? `${backend.elsewhere} at other gateways` : null;
  return text ? h("div", { class: "small muted", title: "Several gateways share these slots" }, text) : null;
}

function rateTitle(now, learned) {
  const what = now.from === "gateway" ? "of ended answers, over a minute" : "all its sequences together, as the engine counts";
  return learned ? `${what}; one alone: ${short(learned)} tok/s` : what;
}

/** Acceptance by position of the draft: 82 · 64 · 41 %. */
function drafts(accepted) {
  if (!accepted.length) return DASH;
  const shares = accepted.map((share) => Math.round(share * 100));
  const mean = accepted.reduce((sum, share) => sum + share, 0);
  return h("span", { title: `by position; ${mean.toFixed(2)} tokens accepted per draft` }, `${shares.join(" · ")} %`);
}

function learned(backend, status) {
  const lacks = Object.keys(backend.learned.lacks);
  const pause = backend.learned.pause_until;
  if (!lacks.length && !pause) return null;
  return h("div", { class: "why" },
    lacks.length ? `learned: no ${lacks.join(", no ")}. ` : "",
    pause ? `answered 429: no requests for ${span(pause - status.now)}` : "");
}

function buttons(name, backend, pending) {
  const button = (action, word) =>
    h("button", { class: "quiet", "data-action": action, "data-name": name, "aria-label": `${word} ${name}`, disabled: pending.has(`${action} ${name}`) }, word);
  const runs = !["parked", "draining"].includes(backend.state);
  const engine = backend.nodes.length && !backend.cloud
    ? [runs ? button("restart", "Restart") : button("start", "Start"), runs ? button("stop", "Stop") : null, button("logs", "Logs")]
    : [];
  return [
    ...engine,
    backend.state === "draining" ? button("resume", "Resume") : button("drain", "Drain"),
    backend.engine === "http" ? null : button("probe", pending.has(`probe ${name}`) ? "Probing" : "Probe"),
  ];
}
