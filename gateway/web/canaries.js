// The canary table: checks by backends, with the evidence on demand.

import { cell, h, rowHead, table } from "./dom.js";
import { span } from "./format.js";

const ORDER = [
  "plain", "stream", "arithmetic", "reasoning", "thinking_on", "thinking_off", "tool_auto", "tool_required", "tool_named",
  "tool_parallel", "tool_stream", "thoughts_kept", "json_schema", "window",
];
const RESULTS = { yes: ["ok", "✓", "yes"], mended: ["warn", "≈", "mended"], no: ["bad", "✕", "no"], untested: ["off", "·", "untested"] };

export function canariesOf(status, chosen) {
  const seen = Object.entries(status.backends).filter(([, backend]) => Object.keys(backend.observed).length);
  if (!seen.length) {
    return h("p", { class: "muted" }, "Nothing is known now. Canaries are asked when a backend is idle, and at every recovery; what was seen of it is forgotten when it goes down.");
  }
  const found = new Set(seen.flatMap(([, backend]) => Object.keys(backend.observed)));
  const checks = [...ORDER.filter((check) => found.has(check)), ...[...found].filter((check) => !ORDER.includes(check))];
  const head = ["Backend", ...checks.map((check) => h("span", { class: "check" }, check.replaceAll("_", " ")))];
  const rows = seen.map(([name, backend]) =>
    h("tr", { role: "row", "data-key": name }, rowHead({ class: "name" }, name),
      checks.map((check) => cell(check, { class: "mark" }, mark(name, check, backend.observed[check], chosen)))),
  );
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Checks by backend" },
    table({ class: "canaries" }, head, h("tbody", { role: "rowgroup" }, rows)));
}

function mark(name, check, observation, chosen) {
  if (!observation) return h("span", { class: "muted" }, "");
  const [level, sign, word] = RESULTS[observation.result] || RESULTS.untested;
  const pressed = chosen && chosen.name === name && chosen.check === check;
  return h("button", {
    class: `result ${level}`, "data-action": "evidence", "data-name": name, "data-check": check,
    "aria-label": `${name}, ${check}: ${word}. Show what was seen`, "aria-pressed": String(Boolean(pressed)), title: `${word}: ${observation.seen}`,
  }, sign);
}

export function evidenceOf(status, chosen) {
  const backend = chosen && status.backends[chosen.name];
  const observation = backend && backend.observed[chosen.check];
  const any = Object.values(status.backends).some((known) => Object.keys(known.observed).length);
  if (!observation) return any && h("p", { class: "muted small" }, "✓ yes, ≈ mended by the gateway, ✕ no, · untested. Choose a mark to read what was seen.");
  const ago = observation.at ? `, ${span(status.now - observation.at)} ago` : "";
  return h("p", {}, h("strong", {}, `${chosen.name}, ${chosen.check.replaceAll("_", " ")}: ${observation.result}`), `${ago}: `, observation.seen);
}
