"use strict";

/** The settings of a request: a field for each, with a word on it. */
const settings = (() => {
  const { data, make } = page;
  const BASIC = ["max_tokens", "n", "temperature", "top_p", "seed"];
  const template = document.getElementById("playground").content;
  const place = template.querySelector("#settings .fields");
  const inputs = new Map();

  for (const { name, label, help, value, min, isAbove, max, isInteger } of data.settings) {
    const least = isAbove ? 0.001 : min;
    const input = make("input", {
      type: "number", id: `setting-${name}`, value, min: least, max, step: isInteger ? 1 : "any",
      placeholder: name === "seed" ? "random" : name === "top_k" ? "all" : null,
    });
    input.required = value !== "";
    inputs.set(name, input);
    const target = BASIC.includes(name) ? template.querySelector("#basic") : place;
    target.append(make("label", {}, label, input, make("small", {}, help)));
  }
  const until = make("select", { id: "setting-until" }, ...["", "sentence", "paragraph", "line"].map((value) => (
    make("option", { value }, value === "" ? "the number of tokens" : `the end of a ${value}`))));
  const stop = make("input", { type: "text", id: "setting-stop", autocomplete: "off", dir: "auto" });
  place.append(
    make("label", {}, "Write up to", until, make("small", {}, "where a text ends at the latest")),
    make("label", {}, "Stop before", stop, make("small", {}, "a text that ends the continuation; it is not shown")));

  /** The fields of a request, without the seed. */
  function fields() {
    const found = {};
    for (const [name, input] of inputs) {
      if (name !== "seed" && input.value !== "") found[name] = Number(input.value);
    }
    if (until.value !== "") found.until = until.value;
    if (stop.value !== "") found.stop = [stop.value];
    return found;
  }

  /** The seed in its field, or a random one. */
  function seed() {
    const { value } = inputs.get("seed");
    return value === "" ? crypto.getRandomValues(new Uint32Array(1))[0] : Number(value);
  }

  function keepSeed(value) {
    inputs.get("seed").value = value;
  }

  return { fields, seed, keepSeed };
})();
