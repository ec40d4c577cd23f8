// The clipboard, also where a page without TLS may not use the browser's own.

import { element } from "./dom.js";

const SECONDS_SHOWN = 1.5;

/** Copies some text; the button that was pressed says so for a moment. */
export async function copyText(text, pressed) {
  const words = pressed.textContent;
  const copied = navigator.clipboard
    ? await navigator.clipboard.writeText(text).then(() => true, () => copySelected(text))
    : copySelected(text);
  pressed.textContent = copied ? "Copied" : "Not allowed";
  setTimeout(() => (pressed.textContent = words), SECONDS_SHOWN * 1000);
}

function copySelected(text) {
  const box = element("textarea", { value: text, className: "visually-hidden" });
  document.body.append(box);
  box.select();
  const copied = document.execCommand("copy");
  box.remove();
  return copied;
}
