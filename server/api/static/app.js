// Puts the page together. Every part owns its own corner of the page; here they meet.

import { getJson } from "./api.js";
import { setUpAttention } from "./attention.js";
import { showBatch, showNoBatch } from "./batch.js";
import { CacheMap } from "./cache_map.js";
import { Chats } from "./chat.js";
import { ChatBlocks } from "./chat_blocks.js";
import { Colours } from "./colours.js";
import { Comparison } from "./compare.js";
import { byId } from "./dom.js";
import { Guide } from "./guide.js";
import { watch } from "./live.js";
import { Meters } from "./meters.js";
import { setUpProjector } from "./projector.js";
import { Requests } from "./requests.js";
import { SamplingSettings } from "./sampling_settings.js";

const colours = new Colours();
const map = new CacheMap(colours);
const blocks = new ChatBlocks();
const meters = new Meters();
const requests = new Requests(colours);
const comparison = new Comparison();
const sampling = new SamplingSettings();

const chats = new Chats(colours, sampling, {
  hover: (chat) => map.pointOut(chat && blocks.of(chat)),
  answer: (answer) => {
    meters.answered(answer);
    if (answer.id) requests.choose(answer.id);
  },
});
const guide = new Guide(chats, sampling);
setUpProjector();

watch({
  onFrame: (frame) => {
    colours.update(frame.regions.map((region) => region.request_id));
    blocks.update(frame, colours);
    map.update(frame);
    showBatch(frame, colours, (ids) => map.pointOut(ids));
    meters.update(frame);
    requests.update(frame);
    guide.update(frame);
    comparison.update(frame);
  },
  onConnect: () => {
    requests.refresh();
    describeServer();
  },
  onGone: () => {
    map.gone();
    showNoBatch();
    meters.gone();
  },
});

/** Names the model, and shows the panels of those endpoints that this server has. */
async function describeServer() {
  try {
    const [models, description] = await Promise.all([getJson("v1/models"), getJson("openapi.json")]);
    const [model] = models.data;
    byId("model").textContent = `${model.id} · ${model.dtype} · ${model.device} · context ${model.max_model_len.toLocaleString()}`;
    sampling.describe(model);
    if ("/v1/compare" in description.paths) comparison.offer();
    if ("/v1/attention" in description.paths) setUpAttention(model);
  } catch (error) {
    byId("model").textContent = error.message;
  }
}
