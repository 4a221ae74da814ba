"use strict";

/** What the views of an inspection share: the tokens, the weights, and what is chosen. */
const inspection = (() => {
  const { data, make, percent } = page;
  const tokens = data.tokens.map((word) => data.words[word]);
  const count = tokens.length;
  const bytes = Uint8Array.from(atob(data.attention), (character) => character.charCodeAt(0));
  const weights = new Uint16Array(bytes.buffer); // little-endian, as the machines are that browsers run on
  const triangle = (count * (count + 1)) / 2;
  const chosen = { token: count - 1, layer: data.layer, head: data.head };
  const watchers = [];

  /** How much a row's token takes from a column's, from 0 to 1. */
  function weight(layer, head, row, column) {
    if (column > row) return 0;
    return weights[(layer * data.heads + head) * triangle + (row * (row + 1)) / 2 + column] / 65535;
  }

  /** Calls a view whenever the choice changes, and once at the end of its making. */
  function watch(view) {
    watchers.push(view);
    view(chosen);
  }

  /** Changes the choice: { token }, { layer, head }. */
  function choose(change) {
    if (Object.entries(change).every(([key, value]) => chosen[key] === value)) return;
    Object.assign(chosen, change);
    for (const view of watchers) view(chosen);
  }

  /** Where a log-probability stands on the scale: 1 for certain, 0 from so many bits of surprise on. */
  const likelihood = (logprob) => 1 - Math.min(data.darkestBits, bits(logprob)) / data.darkestBits;
  const bits = (nats) => Math.max(0, -nats / Math.LN2);

  /** The likeliest tokens behind a position, as a layer would say, with bars; the token that came is marked. */
  function likeliest(layer, at) {
    const { words, logprobs } = data.lens[layer];
    const rows = words[at].map((word, place) => {
      const bar = make("span", { class: "bar" });
      bar.style.inlineSize = `${100 * Math.exp(logprobs[at][place])}%`;
      const came = word === data.tokens[at + 1];
      return make("li", { class: came ? "came" : null },
        make("bdi", {}, data.words[word]), make("span", { class: "track" }, bar),
        make("span", { class: "number" }, percent(logprobs[at][place])), came ? " ✓" : "");
    });
    return make("ol", { class: "likeliest" }, ...rows);
  }

  /** A token in quotation marks. */
  const quoted = (token) => make("bdi", { class: "quoted" }, `‘${tokens[token]}’`);

  const rate = (value) => (value === null ? "–" : value.toFixed(2));
  page.begin(data.model, `${data.layers} layers × ${data.heads} heads`, `${count} tokens`,
    `${rate(data.bitsPerToken)} bits per token`, `${rate(data.bitsPerByte)} bits per byte`);
  return { data, tokens, count, chosen, weight, watch, choose, likelihood, bits, likeliest, quoted };
})();
