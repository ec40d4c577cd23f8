// SamplingSettings: how answers are drawn, from fields that are valid, empty or refused.

import { byId } from "./dom.js";

const STORED = "kvserve-sampling";
const FIELDS = {
  temperature: "temperature",
  max_tokens: "max-tokens",
  top_p: "top-p",
  top_k: "top-k",
  min_p: "min-p",
  seed: "seed",
};

/** For a model whose checkpoint recommends nothing; small models ramble at OpenAI's defaults. */
const SENSIBLE = { temperature: 0.7, top_p: 0.95, min_p: 0.05 };

export class SamplingSettings {
  constructor() {
    for (const [name, id] of Object.entries(FIELDS)) {
      const field = byId(id);
      field.addEventListener("input", () => this.#check(name));
      field.addEventListener("change", () => this.#keep());
    }
    this.#restore();
  }

  /** What the model recommends stands where nothing is entered. */
  describe(model) {
    const recommended = model.default_sampling;
    const suggested = Object.keys(recommended).length ? recommended : SENSIBLE;
    for (const name of ["temperature", "top_p", "top_k", "min_p"]) {
      const value = suggested[name];
      byId(FIELDS[name]).placeholder = value === undefined ? "off" : String(value);
    }
    this.suggested = suggested;
    byId("max-tokens").max = model.max_model_len;
    byId("sampling-source").textContent = Object.keys(recommended).length
      ? "An empty field takes what the checkpoint recommends."
      : "The checkpoint recommends nothing; empty fields take the values shown.";
  }

  /** The fields of a request; null, with the fault shown, where a field is none. */
  values() {
    const chosen = { ...(this.suggested ?? SENSIBLE) };
    for (const [name, id] of Object.entries(FIELDS)) {
      const field = byId(id);
      if (!this.#check(name)) {
        if (field.closest("details")) field.closest("details").open = true;
        field.reportValidity();
        return null;
      }
      if (field.value !== "") chosen[name] = Number(field.value);
    }
    return chosen;
  }

  #check(name) {
    const field = byId(FIELDS[name]);
    field.setAttribute("aria-invalid", String(!field.checkValidity()));
    return field.checkValidity();
  }

  #keep() {
    const kept = Object.fromEntries(
      Object.values(FIELDS).filter((id) => byId(id).checkValidity()).map((id) => [id, byId(id).value]),
    );
    localStorage.setItem(STORED, JSON.stringify(kept));
  }

  #restore() {
    try {
      const kept = JSON.parse(localStorage.getItem(STORED) ?? "{}");
      for (const id of Object.values(FIELDS)) if (typeof kept[id] === "string") byId(id).value = kept[id];
    } catch {
      // Not ours, or of another version.
    }
  }
}
