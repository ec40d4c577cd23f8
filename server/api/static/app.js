// Puts the page together. Every part owns its own corner of the page; here they meet.

import { getJson } from "./api.js";
import { setUpAttention } from "./attention.js";
import { showBatch } from "./batch.js";
import { CacheMap } from "./cache_map.js";
import { Chats } from "./chat.js";
import { Colours } from "./colours.js";
import { setUpComparison } from "./compare.js";
import { byId } from "./dom.js";
import { watch } from "./live.js";
import { Meters } from "./meters.js";
import { Requests } from "./requests.js";

const colours = new Colours();
const map = new CacheMap(colours);
const meters = new Meters();
const requests = new Requests();

new Chats((answer) => {
  meters.answered(answer);
  if (answer.id) requests.choose(answer.id);
});

watch(
  (frame) => {
    colours.update(frame.regions.map((region) => region.request_id));
    map.update(frame);
    showBatch(frame, colours);
    meters.update(frame);
    requests.update(frame);
  },
  () => {
    requests.refresh();
    describeServer();
  },
);

/** Names the model, and shows the panels of those endpoints that this server has. */
async function describeServer() {
  try {
    const [models, description] = await Promise.all([getJson("/v1/models"), getJson("/openapi.json")]);
    const model = models.data[0];
    byId("model").textContent = `${model.id} · ${model.dtype} · ${model.device} · context ${model.max_model_len.toLocaleString()}`;
    byId("max-tokens").max = model.max_model_len;
    if ("/v1/compare" in description.paths) setUpComparison();
    if ("/v1/attention" in description.paths) setUpAttention();
  } catch (error) {
    byId("model").textContent = error.message;
  }
}
