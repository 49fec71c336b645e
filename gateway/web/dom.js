// Elements from data. Each part of the page is rebuilt from the state, and `show` changes only what differs, so that
// the // focus, a selection and an open detail are kept. Text is always text, never markup.

export const at = (id) => document.getElementById(id);

/** An element. `attributes`: `class`, `data-*`, ...; null and false are left out. Children: elements, text, lists. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Replace the content of `place` by these elements. Elements with the same `data-key` are updated in place. */
export function show(place, ...children) {
  morphChildren(place, h("div", {}, ...children)); // false and null add nothing
}

function morph(old, wanted) {
  for (const { name } of [...old.attributes]) {
    const byHand = name === "open" || name === "style";
    if (!byHand && !wanted.hasAttribute(name)) old.removeAttribute(name);
  }
  for (const { name, value } of [...wanted.attributes]) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  if (!old.hasAttribute("data-own")) morphChildren(old, wanted); // elements with data-own are filled by other code
}

const sameKind = (a, b) =>
  a.nodeType === b.nodeType && a.nodeName === b.nodeName && keyOf(a) === keyOf(b);
const keyOf = (node) => (node.nodeType === 1 ? node.getAttribute("data-key") : null);

function morphChildren(old, wanted) {
  const keyed = new Map();
  for (const child of old.children) if (keyOf(child)) keyed.set(keyOf(child), child);
  let next = old.firstChild;
  for (const child of [...wanted.childNodes]) {
    const known = keyOf(child) ? keyed.get(keyOf(child)) : null;
    if (known && known !== next && known.nodeName === child.nodeName) {
      old.insertBefore(known, next);
      next = known;
    }
    if (next && sameKind(next, child)) {
      if (next.nodeType === 1) morph(next, child);
      else if (next.data !== child.data) next.data = child.data;
      next = next.nextSibling;
    } else {
      old.insertBefore(child, next);
    }
  }
  while (next) {
    const after = next.nextSibling;
    next.remove();
    next = after;
  }
}

/** A table with explicit ARIA roles: the card layout of phones would remove the implicit ones. */
export function table(attributes, head, bodies) {
  const columns = head.map((name) => h("th", { role: "columnheader", scope: "col" }, name));
  return h(
    "table", { role: "table", ...attributes },
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, columns)),
    bodies,
  );
}

const SAYS_NOTHING = /^(–[\s/–]*\d*)?$/; // a dash, "– / –", "– / 4"

/** A cell; an empty one is left out in the card layout. */
export function cell(label, attributes, ...children) {
  const element = h("td", { role: "cell", "data-label": label, ...attributes }, ...children);
  if (SAYS_NOTHING.test(element.textContent)) element.classList.add("void");
  return element;
}

export const rowHead = (attributes, ...children) => h("th", { role: "rowheader", scope: "row", ...attributes }, ...children);

/** A mark and words: colour is never the only sign. */
export const badge = ([level, mark], words, title = null) =>
  h("span", { class: `badge ${level}`, title }, h("span", { "aria-hidden": "true" }, mark), ` ${words}`);

const SVG = "http://www.w3.org/2000/svg";

/** A bar with its number beside it; `share` 0 to 1, and from which on it warns, or is bad. (Drawn: a width in a style
 *  attribute would need a laxer policy of the page.) */
export function meter(share, text, label, warn = 0.8, bad = 0.95) {
  const level = share >= bad ? "bad" : share >= warn ? "warn" : "ok";
  const percent = Math.round(Math.min(1, Math.max(0, share)) * 100);
  const drawn = (name, attributes, ...children) => {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  };
  const bar = drawn(
    "svg", { class: `bar ${level}`, viewBox: "0 0 100 6", preserveAspectRatio: "none", "aria-hidden": "true" },
    drawn("rect", { class: "back", width: 100, height: 6 }),
    drawn("rect", { class: "fill", width: percent, height: 6 }),
  );
  return h("span", { class: "meter", title: label }, bar, h("span", { class: "num" }, text));
}
