// The operation under way, a switch, a start or a stop, or the last one as long as it matters.

import { badge, cell, h, rowHead, table } from "./dom.js";
import { number, span, time } from "./format.js";

const MARKS = { waiting: ["off", "○"], running: ["warn", "◔"], done: ["ok", "●"], failed: ["bad", "✕"], skipped: ["off", "–"] };
const DONE_FOR = 600; // seconds for which an operation that is done is shown

/** Null where there is nothing to show. A failed one stays until the next. */
export function operationOf(status, now) {
  const { operation } = status;
  if (!operation || (operation.state === "done" && now - operation.ended > DONE_FOR)) return null;
  const failed = operation.state === "failed";
  return h(
    "div", { class: "operation", "data-key": operation.id },
    h("p", { id: "operation-state", role: "status" }, badge(MARKS[operation.state], `${titleOf(operation)}: ${operation.state}`), " ",
      h("span", { class: "small muted" }, operation.state === "running" ? `since ${time(operation.began)}${expectedOf(operation)}` : `${time(operation.began)}, took ${span(operation.ended - operation.began)}`),
      operation.state === "running" && status.you.admin
        ? [" ", h("button", { class: "quiet", "data-action": "cancel", "data-name": operation.id }, "Cancel")] : null),
    operation.notes.map((note) => h("p", { class: "small muted" }, note)),
    operation.steps.length ? steps(operation, now) : h("p", { class: "muted" }, "Nothing had to be done."),
    failed && operation.error ? h("p", { class: "error" }, operation.error) : null,
    failed && operation.hint ? h("p", {}, h("strong", {}, "What to do: "), operation.hint) : null,
  );
}

export const titleOf = (operation) =>
  operation.kind === "switch" ? `switch to ${operation.mode}` : `${operation.kind} ${operation.backend}`;

function steps(operation, now) {
  const rows = operation.steps.map((step, index) =>
    h("tr", { role: "row", "data-key": `${index}`, class: step.state === "failed" ? "hot bad" : null },
      rowHead({ class: "name" }, `${step.what} ${step.backend}`),
      cell("State", {}, badge(MARKS[step.state], step.state)),
      cell("Time", { class: "num" }, took(step, operation, now)),
      cell("Output", {}, lastLine(step), signOf(step, now))));
  return table({ class: "cards steps", "aria-label": "Steps" }, ["Step", "State", "Time", "Output"], h("tbody", { role: "rowgroup" }, rows));
}

function took(step, operation, now) {
  const began = step.began || operation.since;
  if (step.state === "running" && began) return `${number(Math.max(0, now - began))} s`;
  return step.seconds === null ? "" : `${number(step.seconds, 1)} s`;
}

/** How long it is expected to take, by earlier starts. */
const expectedOf = (operation) => (operation.expected ? `, expected to take ${span(operation.expected)}` : "");

/** The last sign of life of what is waited for. */
const signOf = (step, now) =>
  step.state === "running" && step.sign
    ? h("div", { class: "small muted" }, `${span(Math.max(0, now - step.sign_at))} ago: ${step.sign}`) : null;

/** The last line; all of it where the step failed. */
function lastLine(step) {
  if (!step.output) return "";
  if (step.state === "failed") return h("pre", { class: "small output" }, step.output);
  return h("span", { class: "small", title: step.output }, step.output.trimEnd().split("\n").at(-1));
}

/** spark1: qwen36 (4 min), small */
const laneText = (lane) =>
  `${lane.node || "no node"}: ${lane.starts.map((one) => (one.seconds ? `${one.backend} (${span(one.seconds)})` : one.backend)).join(", then ")}`;

/** What a switch would do, in the words of a question; from the answer to a dry run. */
export function questionOf(plan) {
  const todo = plan.steps.filter((step) => step.state !== "skipped").map((step) => `${step.what} ${step.backend}`);
  const what = plan.kind === "switch" ? `Switch from ${plan.before} to ${plan.mode}?` : `${plan.kind[0].toUpperCase()}${plan.kind.slice(1)} ${plan.backend}?`;
  const lanes = (plan.lanes || []).map((lane) => `\n${laneText(lane)}`);
  const lines = [what, "", ...(todo.length ? todo : ["Nothing has to be done."])];
  return [...lines, ...lanes, ...plan.notes.map((note) => `\nNote: ${note}`)].join("\n");
}
