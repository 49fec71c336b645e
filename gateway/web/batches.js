// Batches: how far each is, how quickly it goes on, and when it will be done.

import { badge, cell, h, meter, rowHead, table } from "./dom.js";
import { number, span } from "./format.js";

const HEAD = ["Batch", "Client", "Models", "State", "Done", "Failed", "Rate", "Left", ""];
const UNFINISHED = new Set(["validating", "in_progress"]);
const LEVELS = { completed: "ok", failed: "bad", expired: "bad", cancelled: "off" };
const MARKS = { ok: "●", bad: "✕", off: "–", warn: "◔" };
const ENDS = 2; // a meter's share from which on it would warn; a batch that is nearly done is no trouble

export function batchesOf({ batches, you }) {
  if (!batches.length) return null;
  return table({ class: "cards", "aria-label": "Batches" }, HEAD, h("tbody", { role: "rowgroup" }, batches.map((batch) => row(batch, !you.client || you.client === batch.client))));
}

function row(batch, mayCancel) {
  const level = LEVELS[batch.status] || "warn";
  const done = batch.completed + batch.failed + batch.cancelled;
  const text = `${number(done)} / ${number(batch.total)}`;
  return h(
    "tr", { role: "row", "data-key": batch.id, "data-batch": batch.id },
    rowHead({ class: "name" }, batch.id),
    cell("Client", {}, batch.client),
    cell("Models", {}, batch.models.join(", ")),
    cell("State", { class: "state" }, badge([level, MARKS[level]], batch.status),
      batch.waits ? h("div", { class: "why" }, batch.waits) : null),
    cell("Done", { class: "num" }, meter(batch.total ? done / batch.total : 0, text, `${text} lines`, ENDS, ENDS)),
    cell("Failed", { class: `num ${batch.failed ? "warn" : ""}` }, batch.failed ? number(batch.failed) : "–"),
    cell("Rate", { class: "num" }, batch.rate === null ? "–" : `${number(batch.rate, 1)} /s`),
    cell("Left", { class: "num" }, batch.left === null ? "–" : span(batch.left)),
    cell("", { class: "actions" }, mayCancel && UNFINISHED.has(batch.status)
      ? h("button", { class: "quiet", "data-action": "cancel-batch", "data-name": batch.id }, "Cancel") : null),
  );
}
