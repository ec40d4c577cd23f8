// The attention panel: a text, a layer and a head to choose, and the map of who looks where.

import { getJson } from "./api.js";
import { AttentionMap } from "./attention_map.js";
import { byId, element } from "./dom.js";

const MEAN = "";

/** Near the input layers look at neighbours, near the output at the first token: between is more. */
const TELLING_SHARE = 1 / 3;

/** Shows the panel; called again after each new connection. */
export function setUpAttention(model) {
  if (!byId("attention-card").hidden) return;
  byId("attention-card").hidden = false;
  fill(byId("attention-layer"), model.num_layers, "all, mean");
  fill(byId("attention-head"), model.num_heads, "all, mean");
  byId("attention-layer").value = String(Math.floor(model.num_layers * TELLING_SHARE));
  const map = new AttentionMap(byId("attention-canvas"), (words) => say(words));
  let newest = 0;
  const ask = async () => {
    newest += 1;
    const mine = newest;
    say("Computing…");
    try {
      const json = { prompt: byId("attention-text").value };
      for (const name of ["layer", "head"]) {
        const { value } = byId(`attention-${name}`);
        if (value !== MEAN) json[name] = Number(value);
      }
      const result = await getJson("v1/attention", { json });
      if (mine !== newest) return;
      byId("attention-figure").hidden = false;
      byId("attention-largest").textContent = `${(100 * map.show(result)).toFixed(0)} %`;
    } catch (error) {
      if (mine === newest) say(error instanceof TypeError ? "The server is gone." : error.message);
    }
  };
  byId("attention-form").addEventListener("submit", (event) => {
    event.preventDefault();
    ask();
  });
  for (const name of ["layer", "head"]) {
    byId(`attention-${name}`).addEventListener("change", () => {
      if (!byId("attention-figure").hidden) ask();
    });
  }
}

function fill(picker, count, mean) {
  const numbered = Array.from({ length: count }, (_, index) =>
    element("option", { value: String(index) }, String(index)));
  picker.replaceChildren(element("option", { value: MEAN }, mean), ...numbered);
}

function say(words) {
  byId("attention-status").textContent = words;
}
