// Usage by client, and recent events.

import { cell, h, rowHead, table } from "./dom.js";
import { number, percent, short, span, time, usd } from "./format.js";

const HEAD = ["Client", "Requests", "Failed", "Prompt", "Cached", "Answer", "USD"];

export function usageOf(usage, budgets) {
  if (!usage) return h("p", { class: "muted" }, "Reading the ledger.");
  if (usage.error) return h("p", { class: "error" }, usage.error);
  const spent = Object.entries(budgets || {});
  return [
    part("Today (UTC)", usage.today.clients),
    part("7 days", usage.week.clients),
    spent.length ? h("p", { class: "small" }, "Budgets spent: ", spent.map(([name, share]) => `${name} ${percent(share)}`).join(", ")) : null,
  ];
}

const audioOf = (row) => row.audio_in_seconds + row.audio_out_seconds;

function audioCell(row) {
  const title = `${number(row.audio_in_seconds)} s transcribed or translated, ${number(row.audio_out_seconds)} s spoken`;
  return cell("Audio", { class: "num", title }, span(audioOf(row)));
}

function part(title, rows) {
  if (!rows.length) return h("p", { class: "muted", "data-key": title }, `${title}: no request.`);
  const audio = rows.some(audioOf);
  const head = audio ? [...HEAD.slice(1, -1), "Audio", "USD"] : HEAD.slice(1);
  return table(
    { class: "usage", "data-key": title, "aria-label": `Usage, ${title}` }, [title, ...head],
    h("tbody", { role: "rowgroup" }, rows.map((row) =>
      h("tr", { role: "row", "data-key": row.client },
        rowHead({ class: "name" }, row.client),
        cell("Requests", { class: "num" }, number(row.requests)),
        cell("Failed", { class: `num ${row.errors ? "warn" : ""}` }, number(row.errors)),
        cell("Prompt", { class: "num", title: number(row.prompt) }, short(row.prompt)),
        cell("Cached", { class: "num", title: number(row.cached) }, row.prompt ? percent(row.cached / row.prompt) : "–"),
        cell("Answer", { class: "num", title: number(row.completion) }, short(row.completion)),
        audio ? audioCell(row) : null,
        cell("USD", { class: "num" }, usd(row.usd).replace(" USD", "") + (row.unpriced && row.usd ? " + ?" : ""))))),
  );
}

export function eventsOf(events) {
  if (!events.length) return h("p", { class: "muted" }, "Nothing has happened since the gateway was started.");
  return h("ol", {}, [...events].reverse().map((event) =>
    h("li", { "data-key": `${event.at} ${event.backend || ""} ${event.after || event.kind}` },
      h("time", { datetime: new Date(event.at * 1000).toISOString() }, time(event.at)), " ",
      h("strong", {}, event.backend || ""), " ",
      event.kind === "state" ? h("span", { class: `to ${event.after}` }, `${event.before} → ${event.after}`)
        : h("span", {}, event.kind === "mode" ? `mode ${event.before} → ${event.after}` : event.kind),
      event.reason ? h("span", { class: "muted" }, ` ${event.reason}`) : event.kind === "drift" ? h("span", { class: "muted" }, " is what routes.yaml says again") : null)));
}
