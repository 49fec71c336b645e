// The requests that run and the last ones; a row opens its story, which the gateway tells in sentences.

import { ask, messageOf, NeedsKey } from "./client.js";
import { at, badge, cell, h, rowHead, show, table } from "./dom.js";
import { number, seconds, short, time } from "./format.js";

const HEAD = ["Request", "State", "Client", "Alias", "Tokens", "Tokens/s", "First", "Total", ""];
const SHOWN = 30; // past requests
const PATH = "/admin/requests";

const view = { found: null, opened: "", story: null, trouble: "", replayed: null };
let looking = null; // the look under way
let again = false; // what is wanted has changed since it began

/** Look again, and draw. Nothing is asked where the viewer may see no request. */
export async function lookAtRequests(status) {
  view.admin = Boolean(status && status.you.admin);
  const may = Boolean(status && (status.you.admin || status.you.client));
  again = Boolean(looking);
  if (may) await (looking ??= look().finally(() => { looking = null; }));
  draw(may);
  if (again && !looking) await lookAtRequests(status);
}

async function look() {
  const query = new URLSearchParams({ limit: SHOWN });
  const words = at("requests-find").value.trim();
  if (words) query.set("q", words);
  if (at("requests-failed").checked) query.set("outcome", "failed");
  const answer = await ask(`${PATH}?${query}`);
  view.trouble = answer.ok || answer.status === 404 ? "" : await messageOf(answer); // 404: of an app, which may be missing
  view.found = answer.ok ? await answer.json() : null;
  if (!view.opened) return;
  const told = await ask(`${PATH}/${encodeURIComponent(view.opened)}`);
  view.story = told.ok ? await told.json() : { story: [await messageOf(told)] };
}

function draw(may) {
  const { found, trouble } = view;
  at("requests-panel").hidden = !may || (!found && !trouble);
  if (trouble) return show(at("requests"), h("p", { class: "error" }, trouble));
  if (!found) return show(at("requests"));
  const rows = [...found.running.map((one) => row(one, true)), ...found.requests.map((one) => row(one, false))];
  const none = found.kept.keep ? "No such request." : "Past requests are not kept (server.requests).";
  const lost = found.kept.lost ? h("p", { class: "small warn" }, `${number(found.kept.lost)} could not be written.`) : null;
  return show(at("requests"), captureOf(found.capture), rows.length
    ? table({ class: "cards requests", "aria-label": "Requests" }, HEAD, h("tbody", { role: "rowgroup" }, rows))
    : h("p", { class: "muted" }, none), lost);
}

/** An admin may turn it on; while it runs, everybody who sees requests is told. */
function captureOf(capture) {
  if (!capture) {
    return view.admin ? h("p", { "data-key": "capture" }, h("button", { class: "quiet", "data-action": "capture", "data-name": "15m" }, "Capture bodies for 15 min")) : null;
  }
  const whose = capture.client ? `of ${capture.client}` : "of all clients";
  return h("p", { "data-key": "capture", class: "warn" }, `◔ Bodies ${whose} are captured until ${time(capture.until)}: ${number(capture.requests)} so far. `,
    view.admin ? h("button", { class: "quiet", "data-action": "capture", "data-name": "0s" }, "End it") : null);
}

function markOf(one, running) {
  if (running) return ["off", "◔", one.phase];
  if (one.failed) return ["bad", "✕", one.outcome];
  if (one.outcome !== "200") return ["warn", "–", one.outcome];
  const detour = one.fallback ? `fallback: ${one.fallback}` : one.routed ? `routed: ${one.routed}` : "";
  return detour ? ["warn", "●", detour] : ["ok", "●", "200"];
}

const speedOf = (one) => {
  const begun = one.stream ? one.first_token_ms : one.queued_ms;
  const tokens = one.tokens_out - (one.stream ? one.tokens_reasoning : 0); // thoughts come before the first content
  const past = one.total_ms - (begun || 0);
  return tokens > 0 && past > 10 ? (tokens * 1000) / past : null;
};

function row(one, running) {
  const [level, mark, words] = markOf(one, running);
  const opened = view.opened === one.id;
  const speed = running ? one.tokens_per_s : speedOf(one);
  const tokens = running ? short(one.tokens_out || null) : one.tokens_in || one.tokens_out ? `${short(one.tokens_in)} + ${short(one.tokens_out)}` : "–";
  const key = running ? `runs ${one.id} ${one.began}` : `past ${one.number}`;
  const drawn = h(
    "tr", { role: "row", "data-key": key, "data-request": one.id, class: opened ? "opened" : null },
    rowHead({ class: "when" }, h("button", { class: "quiet", "data-action": "story", "data-name": one.id, "aria-expanded": String(opened), title: one.id },
      running ? "now" : time(one.at))),
    cell("State", { class: "state" }, badge([level, mark], words)),
    cell("Client", {}, one.client),
    cell("Alias", { class: "route-of" }, one.alias || "–", one.backend && one.backend !== one.alias ? h("span", { class: "muted" }, ` → ${one.backend}`) : null),
    cell("Tokens", { class: "num" }, tokens),
    cell("Tokens/s", { class: "num" }, number(speed, speed && speed < 10 ? 1 : 0)),
    cell("First", { class: "num" }, one.stream && one.first_token_ms ? seconds(one.first_token_ms / 1000) : "–"),
    cell("Total", { class: "num" }, seconds(one.total_ms / 1000)),
    cell("", { class: "actions" }, running ? h("button", { class: "quiet", "data-action": "cancel-request", "data-name": one.id }, "Cancel") : null),
  );
  return opened ? [drawn, storyRow(key)] : drawn;
}

function storyRow(key) {
  const { story } = view;
  return h("tr", { role: "row", class: "story", "data-key": `story of ${key}` }, h("td", { role: "cell", colspan: HEAD.length },
    h("ol", {}, (story ? story.story : ["Reading."]).map((sentence) => h("li", {}, sentence))),
    h("p", { class: "small muted" }, "x-request-id ", h("code", {}, view.opened), story && story.others ? `; ${story.others} more have this id` : "", " ",
      story && story.captured ? h("button", { class: "quiet", "data-action": "replay", "data-name": view.opened }, "Send it again") : null),
    bothAnswers()));
}

/** The answer that was captured beside that of a replay. */
function bothAnswers() {
  const { replayed } = view;
  if (!replayed || replayed.of !== view.opened) return null;
  if (!replayed.now) return h("p", { class: "muted" }, "Sent again; waiting for the answer.");
  const part = (title, said) => h("div", {}, h("p", { class: "small muted" }, title),
    h("pre", { class: "answer" }, [said.thoughts, said.text, ...said.calls, said.error].filter(Boolean).join("\n\n") || "nothing"));
  return h("div", { class: "columns" }, part("then", replayed.then), part(`now, ${replayed.backend || replayed.status}`, replayed.now));
}

async function order(notice, refresh, path, how, done) {
  refresh();
  const answer = await ask(path, how).catch((error) => error);
  if (answer instanceof NeedsKey) throw answer;
  if (answer.ok) done(await answer.json());
  else {
    view.replayed = null;
    notice(answer instanceof Error ? answer.message : await messageOf(answer), "bad");
  }
  refresh();
}

/** The buttons of the panel, for the page's table of actions. `refresh` looks and draws at once. */
export const requestActions = (refresh, notice) => ({
  story: ({ name }) => {
    view.opened = view.opened === name ? "" : name;
    view.replayed = null;
    view.story = null;
    refresh();
  },
  "cancel-request": ({ name }) => confirm(`Cancel ${name}? Its client gets an error, request_cancelled.`)
    && order(notice, refresh, `${PATH}/${encodeURIComponent(name)}`, { method: "DELETE" }, () => notice(`${name} was cancelled.`)),
  capture: ({ name }) => (name === "0s" || confirm("Keep the requests and answers of all clients for 15 minutes? They are dropped after a day."))
    && order(notice, refresh, "/admin/capture", { method: "POST", body: { for: name } }, () => {}),
  replay: ({ name }) => {
    view.replayed = { of: name };
    return order(notice, refresh, `${PATH}/${encodeURIComponent(name)}/replay`, { method: "POST", body: {} }, (found) => {
      view.replayed = { of: name, ...found };
    });
  },
});

export function wireRequests(refresh) {
  at("requests-form").addEventListener("submit", (event) => event.preventDefault());
  at("requests-find").addEventListener("input", refresh);
  at("requests-failed").addEventListener("change", refresh);
}
