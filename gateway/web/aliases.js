// The backends that serve each alias now, and its steps.

import { cell, h, rowHead, table } from "./dom.js";
import { DASH, seconds, span, time } from "./format.js";
import { MARKS } from "./fleet.js";

const COURSES = {
  home: ["ok", "first step"],
  fallback: ["warn", "fallback"],
  cloud: ["bad", "cloud"],
  nothing: ["bad", "nobody"],
  parked: ["off", "parked"],
};

const HEAD = ["Alias", "Served by", "Chain", "First token p50 / p95", ""];

export function aliasesOf(status) {
  const named = Object.entries(status.aliases).filter(([, alias]) => !alias.implicit);
  const own = Object.entries(status.aliases).filter(([, alias]) => alias.implicit);
  if (!named.length && !own.length) return h("p", { class: "muted" }, "routes.yaml has no aliases.");
  const tableOf = (entries, label) => table({ class: "cards aliases", "aria-label": label }, HEAD,
    h("tbody", { role: "rowgroup" }, entries.map(([name, alias]) => row(name, alias, status))));
  return [
    named.length ? tableOf(named, "Aliases") : null,
    own.length ? h("details", { class: "more", open: !named.length },
      h("summary", {}, `${own.length} ${own.length === 1 ? "backend" : "backends"} under ${own.length === 1 ? "its" : "their"} own name`), tableOf(own, "Backends under their own name")) : null,
  ];
}

function row(name, alias, status) {
  const [level, word] = COURSES[alias.course] || ["off", alias.course];
  const served = alias.course === "home" && alias.step > 1 ? `step ${alias.step}` : word;
  const since = alias.since ? ` since ${time(alias.since)} (${span(status.now - alias.since)})` : "";
  return h(
    "tr", { role: "row", "data-key": name, class: level === "ok" || level === "off" ? null : `hot ${level}` },
    rowHead({ class: "name" }, name),
    cell(
      "Served by", {},
      h("span", { class: `badge ${level}` }, served), " ", h("strong", {}, alias.serving.join(", ") || DASH),
      since ? h("span", { class: "small" }, since) : null,
      alias.why && level !== "ok" ? h("div", { class: "why" }, alias.why) : null,
    ),
    cell("Chain", { class: "chain" }, alias.steps.map((step, index) => [index ? h("span", { class: "arrow" }, "→") : null, chips(step, status)])),
    cell("First token p50 / p95", { class: "num" }, `${seconds(alias.now.ttft_p50)} / ${seconds(alias.now.ttft_p95)}`),
    cell("", { class: "actions" }, h("button", { class: "quiet", "data-action": "try", "data-name": name, "aria-label": `Try ${name}` }, "Try")),
  );
}

function chips(step, status) {
  return h(
    "span", { class: "step" },
    step.map((name) => {
      const backend = status.backends[name];
      const [level, mark] = MARKS[backend ? backend.state : "unknown"];
      const title = backend ? `${name}: ${backend.state}, ${backend.reason}` : name;
      return h("span", { class: `chip ${level}`, title }, h("span", { "aria-hidden": "true" }, mark), name,
        h("span", { class: "unseen" }, ` (${backend ? backend.state : "unknown"})`));
    }),
  );
}
