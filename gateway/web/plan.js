// The memory plan: the picture of `gateway fleet plan`, and what the nodes hold beside it.

import { h } from "./dom.js";
import { number } from "./format.js";

export function planOf(plan) {
  if (!plan) return null;
  if (plan.error) return h("p", { class: "error" }, plan.error);
  const nodes = Object.entries(plan.nodes);
  return [
    h("div", { class: "picture", "data-key": "picture", "data-own": true }),
    h("ul", { class: "small", "data-key": "live" }, nodes.filter(([, node]) => node.live).map(([name, { live }]) =>
      h("li", { "data-key": name, class: live.warning ? "warn" : null },
        `${name}: `, live.warning || `${number(live.used, 1)} GiB in use`,
        live.planned !== null && !live.warning ? `, planned ${number(live.planned, 1)}` : null,
        live.note ? h("span", { class: "muted" }, ` (${live.note})`) : null))),
  ];
}

/** Put the picture into its place; it is made by this gateway and holds neither scripts nor links. */
export function drawPlan(place, plan) {
  const spot = place.querySelector(".picture");
  if (!spot || !plan.svg || spot.dataset.drawn === plan.svg) return;
  const picture = new DOMParser().parseFromString(plan.svg, "image/svg+xml").documentElement;
  spot.replaceChildren(document.importNode(picture, true));
  spot.dataset.drawn = plan.svg;
}
