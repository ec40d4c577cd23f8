// Small helpers for building the page. Text is always set as text, never parsed as HTML.

export const byId = (id) => document.getElementById(id);

/** An element with properties and children; strings become text nodes. */
export function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("aria-") || name.startsWith("data-") || name === "role") {
      node.setAttribute(name, value);
    } else {
      node[name] = value;
    }
  }
  node.append(...children);
  return node;
}

/** A button that does something; the words are its name. */
export function button(words, action, properties = {}) {
  const node = element("button", { type: "button", className: "quiet small", ...properties }, words);
  node.addEventListener("click", action);
  return node;
}

/** How much larger than usual the text is: canvases are drawn as if it were not, and enlarged. */
export const zoom = () => parseFloat(getComputedStyle(document.documentElement).fontSize) / 16;

/** A canvas cleared and scaled for the screen's pixels and the text's size. */
export function surface(canvas, height) {
  const ratio = window.devicePixelRatio || 1;
  const factor = zoom();
  const width = canvas.clientWidth / factor;
  canvas.style.height = `${height * factor}px`;
  canvas.width = Math.round(canvas.clientWidth * ratio);
  canvas.height = Math.round(height * factor * ratio);
  const context = canvas.getContext("2d");
  context.setTransform(ratio * factor, 0, 0, ratio * factor, 0, 0);
  context.font = "12px system-ui, sans-serif";
  return { context, width, height };
}

/** The current value of one of the style sheet's colours. */
export function tint(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** Calls `draw` when the size of the canvas or the colour scheme changes. */
export function redrawWhenNeeded(canvas, draw) {
  let width = 0;
  new ResizeObserver(() => {
    if (canvas.clientWidth !== width) {
      width = canvas.clientWidth;
      draw();
    }
  }).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}

export function milliseconds(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds >= 10) return `${seconds.toFixed(1)} s`;
  if (seconds >= 1) return `${seconds.toFixed(2)} s`;
  return `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
}

export const plural = (count, noun) => `${count.toLocaleString()} ${noun}${count === 1 ? "" : "s"}`;

/** Lets the user keep some text as a file. */
export function saveAs(name, content) {
  const url = URL.createObjectURL(content);
  element("a", { href: url, download: name }).click();
  URL.revokeObjectURL(url);
}
