// The view for a projector: the whole screen, and everything larger.

import { byId } from "./dom.js";

export function setUpProjector() {
  const pressed = byId("projector");
  const root = document.documentElement;
  if (!root.requestFullscreen) {
    pressed.hidden = true;
    return;
  }
  pressed.addEventListener("click", () => {
    if (document.fullscreenElement) document.exitFullscreen();
    else root.requestFullscreen().catch(() => root.classList.toggle("projected"));
  });
  document.addEventListener("fullscreenchange", () => {
    const isFull = document.fullscreenElement !== null;
    root.classList.toggle("projected", isFull);
    pressed.textContent = isFull ? "Leave full screen" : "Full screen";
    window.dispatchEvent(new Event("resize"));
  });
}
