// Small helpers for the page. Text goes into the document as text, never as markup.

export const $ = (id) => document.getElementById(id);

export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") made.textContent = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") made.textContent = value;
    else if (value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

// Writing the same again would disturb whoever selects or listens.
export function setText(node, text) {
  const wanted = String(text);
  if (node.textContent !== wanted) node.textContent = wanted;
}

export function setAttribute(node, name, value) {
  if (value === null || value === undefined) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

// One child per item, in this order. Children that stay keep their place, focus and state.
export function keyed(container, items, keyOf, create, update) {
  const before = new Map([...container.children].map((child) => [child.dataset.key, child]));
  let place = container.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let child = before.get(key);
    if (child === undefined) {
      child = create(item);
      child.dataset.key = key;
    }
    before.delete(key);
    if (child === place) place = place.nextElementSibling;
    else container.insertBefore(child, place);
    update(child, item);
  }
  for (const gone of before.values()) gone.remove();
}

export function facts(list, pairs) {
  keyed(
    list, pairs, (pair) => pair[0],
    (pair) => el("div", {}, el("dt", { text: pair[0] }), el("dd")),
    (row, pair) => setText(row.lastElementChild, pair[1]),
  );
}
