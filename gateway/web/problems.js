// The problems in /status: the banner, and a summary in one line.

import { h } from "./dom.js";
import { number, percent, span, time, usd } from "./format.js";

const OUT = new Set(["down", "misconfigured", "suspect", "warming"]);
const TOGETHER = 30; // seconds within which backends of one node fall by one cause

/** [{level: bad | warn, text, more, since}], the worst first. `text` and `more` contain no running time. */
export function problemsOf(status, gone) {
  const found = [];
  const add = (level, text, more = "", since = null) => found.push({ level, text, more, since });
  if (gone) {
    add("bad", "The gateway does not answer.", "What you see is how it was. Trying again.", gone);
  }
  if (!status) return found;
  if (status.stopping) add("bad", "The gateway is stopping.", "Running requests may end; new ones are refused.");
  if (status.shared && !status.shared.joined) {
    add("warn", "Redis is away: this gateway goes on alone, with its share of the slots.", status.shared.reason, status.shared.since);
  }
  if (status.config && status.config.error) {
    const loaded = status.config.loaded_at ? ` The version of ${time(status.config.loaded_at)} stays in force.` : "";
    add("bad", `${status.config.path || "routes.yaml"} was edited and is not valid.${loaded}`, status.config.error);
  }
  const causes = causesOf(status);
  for (const { course, names, aliases, by } of awayOf(status)) {
    const cause = course === "cloud" ? null : causeOf(causes, aliases);
    if (cause) {
      cause.aliases.push({ course, names, by });
      continue;
    }
    const one = names.length === 1;
    const who = `${names.join(", ")} ${one ? "is" : "are"}`;
    const since = Math.min(...aliases.map((alias) => alias.since));
    if (course === "nothing") add("bad", `${names.join(", ")}: nobody serves ${one ? "it" : "them"}.`, whyOf(aliases), since);
    if (course === "cloud") add("bad", `${who} on the cloud: ${by}. Prompts leave the LAN.`, costs(aliases, true), since);
    if (course === "fallback") add("warn", `${who} on a fallback: ${by}.`, costs(aliases, false), since);
  }
  for (const cause of causes) {
    const bad = cause.state === "down" || cause.state === "misconfigured" || cause.aliases.some(({ course }) => course === "nothing");
    add(bad ? "bad" : "warn", `${whoOf(cause, status)}.${effects(cause.aliases)}`, whatToDo(cause, status), cause.since);
  }
  for (const [name, node] of Object.entries(status.nodes)) {
    const told = causes.some((cause) => cause.node === name && cause.state === "down");
    if (node.state === "down" && !told) add("bad", `Node ${name} is down.`, node.why);
  }
  for (const [name, backend] of Object.entries(status.backends)) {
    if (backend.drift.length) add("warn", `${name} is not what routes.yaml says.`, backend.drift.join("; "));
  }
  for (const [name, share] of Object.entries(status.budgets || {})) {
    if (share >= 0.8) add(share >= 1 ? "bad" : "warn", `Budget of ${name}: ${percent(share)} is spent.`);
  }
  return found.sort((a, b) => (a.level === b.level ? 0 : a.level === "bad" ? -1 : 1));
}

/** The aliases that are not served by their first step, grouped by cause. */
function awayOf(status) {
  const groups = new Map();
  for (const [name, alias] of Object.entries(status.aliases)) {
    if (alias.implicit || !["nothing", "cloud", "fallback"].includes(alias.course)) continue; // a backend's own name: the backend is listed already
    const by = alias.serving.join(", ");
    const like = `${alias.course} ${by} ${alias.why}`;
    if (!groups.has(like)) groups.set(like, { course: alias.course, by, names: [], aliases: [] });
    groups.get(like).names.push(name);
    groups.get(like).aliases.push(alias);
  }
  return groups.values();
}

/** The backends that are out, as [{state, node, names, since, aliases}]: those of one node that fell together have one cause. */
function causesOf(status) {
  const causes = [];
  const out = Object.entries(status.backends).filter(([, one]) => OUT.has(one.state)).sort(([, a], [, b]) => a.since - b.since);
  for (const [name, { state, since, nodes }] of out) {
    const node = nodes[0];
    const whole = status.nodes[node]?.state === "down";
    const one = node && state === "down" && causes.find((cause) => cause.node === node && cause.state === "down" && (whole || since - cause.last <= TOGETHER));
    if (!one) causes.push({ state, node, names: [name], since, last: since, aliases: [] });
    else {
      one.names.push(name);
      one.last = since;
    }
  }
  return causes;
}

/** The one cause for which all these aliases are not served by a backend before; null = there is none, or several. */
function causeOf(causes, aliases) {
  const found = new Set(aliases.map(({ steps, step }) => {
    const before = steps.slice(0, step === null ? steps.length : step - 1).flat();
    return before.map((name) => causes.find((cause) => cause.names.includes(name))).find(Boolean);
  }));
  const [cause] = found;
  return found.size === 1 && cause ? cause : null;
}

function whoOf({ state, node, names }, status) {
  if (state === "down" && status.nodes[node]?.state === "down") return `Node ${node} is down, and with it ${names.join(", ")}`;
  return names.length === 1 ? `${names[0]} is ${state}` : `${names.length} backends on ${node} are down: ${names.join(", ")}`;
}

function effects(found) {
  const like = new Map(); // course and who serves -> the aliases
  for (const { course, names, by } of found) {
    const key = course === "nothing" ? "" : by;
    like.set(key, [...(like.get(key) || []), ...names]);
  }
  return [...like].map(([by, names]) =>
    by ? ` ${names.join(", ")} ${names.length === 1 ? "is" : "are"} on a fallback: ${by}.` : ` Nobody serves ${names.join(", ")}.`).join("");
}

/** Why they are out, the likely cause, and what mends it. */
function whatToDo({ state, node, names }, status) {
  const backends = names.map((name) => status.backends[name]);
  const reasons = [...new Set(backends.map(({ reason }) => reason))].join("; ");
  const [{ trouble }] = backends;
  const one = names.length === 1 && trouble;
  const likely = one && trouble.cause ? ` Likely: ${trouble.cause}.` : one && trouble.words.length ? ` Its last words: ${trouble.words.at(-1)}` : "";
  const mends = [...new Set(backends.map((backend) => backend.trouble?.mend).filter(Boolean))].slice(0, 2);
  if (!mends.length && state === "warming") return reasons;
  const steered = state === "down" && node && backends[0].engine === "vllm";
  const look = names.length > 1 ? "gateway fleet status" : `gateway ${steered ? "fleet logs" : "probe"} ${names[0]}`;
  const gone = status.nodes[node]?.state === "down" ? "see whether the machine runs, and its network" : look;
  const button = !status.you.admin ? "" : mends.length ? " (or Restart, below)" : steered ? " (or Logs and Restart, below)" : "";
  return `${reasons}.${likely} What to do: ${mends.join("; ") || gone}${button}`;
}

const whyOf = (aliases) => `${aliases[0].why}.`;

function costs(aliases, cloud) {
  const sum = aliases.reduce((total, alias) => total + (alias.usd || 0), 0);
  return whyOf(aliases) + (sum || cloud ? ` Cost since then: ${usd(sum)}.` : "");
}

export function bannerOf(problems, now) {
  return problems.map((problem) =>
    h(
      "div", { class: `problem ${problem.level}`, "data-key": problem.text },
      h("span", { class: "mark", "aria-hidden": "true" }, problem.level === "bad" ? "✕" : "!"),
      h("p", {}, h("strong", {}, problem.text), " ", h("span", { class: "more" }, problem.more)),
      problem.since
        ? h("p", { class: "since" }, `since ${time(problem.since)} (${span(now - problem.since)})`)
        : h("p", { class: "since" }),
    ),
  );
}

const NAMED = 3; // aliases in the headline

/** The aliases that nobody serves now, as the headline names them; with those that the mode in force means to be without. */
function unserved(status, courses) {
  const names = Object.entries(status.aliases).filter(([, alias]) => !alias.implicit && courses.includes(alias.course)).map(([name]) => name);
  const more = names.length > NAMED ? ` and ${number(names.length - NAMED)} more` : "";
  return { names, text: `nobody serves ${names.slice(0, NAMED).join(", ")}${more}` };
}

/** {level: ok | off | warn | bad, text, title}: the headline, and the title of the tab. Off = all is as the mode in force
 *  means it to be, and some aliases are without service. */
export function verdictOf(problems, status) {
  const bad = problems.filter((problem) => problem.level === "bad").length;
  const all = problems.length;
  const level = bad ? "bad" : all ? "warn" : "ok";
  const backends = status ? Object.values(status.backends) : [];
  const well = backends.filter((backend) => backend.state === "ready" || backend.state === "busy").length;
  const looked = backends.filter((backend) => backend.state !== "parked" && backend.state !== "unknown").length;
  const parked = backends.filter((backend) => backend.state === "parked").length;
  const out = status ? unserved(status, all ? ["nothing"] : ["parked"]) : { names: [] };
  const told = out.names.length ? out.text : "";
  if (all) {
    const text = `${number(all)} ${all === 1 ? "problem" : "problems"}${told ? `: ${told}` : ""}`;
    return { level, text, title: `✕ ${all}${told ? ` ${told}` : ""}` };
  }
  if (told) {
    const aliases = Object.values(status.aliases).filter((alias) => !alias.implicit).length;
    const mode = status.mode ? ` in mode ${status.mode}` : "";
    const text = `${number(aliases - out.names.length)} of ${number(aliases)} aliases served: ${told}${mode}`;
    return { level: "off", text, title: `– ${told}` };
  }
  return { level, text: `All well: ${number(well)} of ${number(looked)} backends serve${parked ? `, ${parked} parked` : ""}`, title: "✓" };
}
