// Small helpers for the elements of the page, its texts and its timers.

/** The elements that have an id, by its name in camel case. */
export const page = {};
for (const node of document.querySelectorAll("[id]")) {
  page[node.id.replace(/-(\w)/g, (_, c) => c.toUpperCase())] = node;
}

/** Creates an element with properties and children. */
export function element(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

/** Lets the arrow keys move the focus between the items of a container. */
export function rove(container, selector) {
  const items = () => [...container.querySelectorAll(selector)];
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

  function setStop(item) {
    for (const other of items()) other.tabIndex = other === item ? 0 : -1;
  }

  container.addEventListener("focusin", (event) => {
    const item = event.target.closest(selector);
    if (item) setStop(item);
  });
  container.addEventListener("keydown", (event) => {
    const all = items();
    const index = all.indexOf(event.target.closest(selector));
    const ends = { Home: 0, End: all.length - 1 };
    const next = ends[event.key] ?? index + step[event.key];
    if (index < 0 || !all[next]) return;
    event.preventDefault();
    all[next].focus();
  });
}

/** Makes the first item, or the chosen one, the one that Tab reaches. */
export function setTabStop(container, selector, chosen = 0) {
  container.querySelectorAll(selector).forEach((item, i) => {
    item.tabIndex = i === chosen ? 0 : -1;
  });
}

/** Returns a function that runs after a pause in its calls. */
export function afterPause(action, milliseconds) {
  let timer;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...values), milliseconds);
  };
}

/** Returns the English name of a language, or its code. */
export function languageName(code) {
  try {
    return new Intl.DisplayNames(["en"], { type: "language" }).of(code);
  } catch {
    return code;
  }
}

/** Returns a number and a noun, such as "1 word" or "2 words". */
export function counted(count, noun) {
  return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
}
