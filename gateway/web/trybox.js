// "Try it": sends a chat through the gateway as a client would, and shows the route it took.

import { ask, eventsOf, messageOf, NeedsKey } from "./client.js";
import { at, h, show } from "./dom.js";
import { seconds } from "./format.js";

const MOST = 2000; // tokens of an answer here

let stop = null;

export function openTry(status, name) {
  const names = Object.keys(status.aliases);
  at("try-alias").replaceChildren(...names.map((alias) => h("option", { value: alias, selected: alias === name }, alias)));
  at("try-alias").value = name;
  at("try-plan").hidden = !status.you.admin;
  clear();
  at("try").showModal();
  at("try-text").focus();
  at("try-text").select();
}

export function wireTry() {
  at("try-close").addEventListener("click", () => at("try").close());
  at("try").addEventListener("close", () => stop?.abort());
  at("try-stop").addEventListener("click", () => stop?.abort());
  at("try-plan").addEventListener("click", explain);
  at("try-alias").addEventListener("change", clear);
  at("try-form").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
}

function clear() {
  show(at("try-route"));
  say("");
  for (const id of ["try-thoughts", "try-answer"]) at(id).hidden = true;
  at("try-thinking").textContent = at("try-answer").textContent = "";
}

const say = (text) => { at("try-state").textContent = text; };
const request = () => ({ model: at("try-alias").value, messages: [{ role: "user", content: at("try-text").value }], max_tokens: MOST });

async function send() {
  clear();
  stop = new AbortController();
  at("try-send").disabled = true;
  at("try-stop").disabled = false;
  const began = performance.now();
  const since = () => (performance.now() - began) / 1000;
  const route = {};
  say("waiting");
  try {
    const answer = await ask("/v1/chat/completions", { method: "POST", body: { ...request(), stream: true }, signal: stop.signal });
    for (const [name, value] of answer.headers) if (name.startsWith("x-gateway-")) route[name.slice(10)] = value;
    route["request id"] = answer.headers.get("x-request-id");
    showRoute(route);
    if (!answer.ok) {
      say(`refused (${answer.status}): ${await messageOf(answer)}`);
      return;
    }
    const outcome = await take(answer, route, since);
    route.total = seconds(since());
    showRoute(route);
    say(outcome);
  } catch (error) {
    say(stop.signal.aborted ? "stopped" : error instanceof NeedsKey ? `refused: ${error.message}` : `the stream broke: ${error.message}`);
  } finally {
    at("try-send").disabled = false;
    at("try-stop").disabled = true;
  }
}

/** Show the answer as it arrives. Returns how it ended. */
async function take(answer, route, since) {
  let outcome = "the stream broke: it had no end";
  for await (const [name, data] of eventsOf(answer)) {
    if (name === "comment" && data.startsWith("x-gateway ")) {
      for (const pair of data.slice(10).split(";")) {
        const [what, value] = pair.trim().split("=");
        route[what] = value;
      }
      showRoute(route);
    }
    if (name === "comment" || data === "[DONE]") continue;
    const event = JSON.parse(data);
    if (event.error) return `the stream broke: ${event.error.message}`;
    for (const { delta, finish_reason: finish } of event.choices || []) {
      const thought = delta.reasoning ?? delta.reasoning_content;
      if (thought) put("try-thinking", thought, "try-thoughts");
      if (delta.content) {
        route["first token"] ??= seconds(since());
        put("try-answer", delta.content, "try-answer");
        say("answering");
      }
      if (finish) outcome = finish === "stop" ? "done" : `done (${finish})`;
    }
  }
  return outcome;
}

function put(id, text, place) {
  at(id).append(at(id).textContent ? text : text.trimStart());
  at(place).hidden = false;
}

const ROUTE = ["backend", "alias", "attempts", "queue-ms", "fallback", "routed", "adapted", "committed", "first token", "total", "request id"];
const WORDS = { backend: "answered by", "queue-ms": "waited (ms)", committed: "status sent" };

function showRoute(route) {
  const parts = ROUTE.filter((name) => route[name] !== undefined && route[name] !== null);
  show(at("try-route"), h("dl", { class: "route" }, parts.map((name) =>
    h("div", { class: name === "fallback" ? "warn" : null }, h("dt", {}, WORDS[name] || name), h("dd", {}, route[name])))));
}

async function explain() {
  clear();
  say("asking");
  try {
    const { model, ...rest } = request();
    const answer = await ask("/admin/explain", { method: "POST", body: { alias: model, request: rest } });
    if (!answer.ok) return say(`refused (${answer.status}): ${await messageOf(answer)}`);
    const plan = await answer.json();
    say(plan.served ? `would go to ${plan.order.join(", then ")}` : `would be refused: ${plan.error.message}`);
    show(at("try-route"), h("ol", { class: "plan" }, plan.steps.map((step) =>
      h("li", {}, h("ul", {}, step.backends.map((backend) =>
        h("li", {}, h("strong", {}, backend.backend), ` ${backend.verdict}`, backend.reasons.length ? `: ${backend.reasons.join("; ")}` : "")))))));
  } catch (error) {
    say(error.message);
  }
  return undefined;
}
