"use strict";

/** Inspections: their views are made by the scripts that follow, from the parts that `inspected` gives to each. */
const inspection = (() => {
  const makers = [];

  /** Shows an inspection in a place, in the order in which its views were added. */
  function show(data, place) {
    const parts = inspected(data, place);
    for (const makeView of makers) makeView(parts);
  }

  return { addView: (makeView) => makers.push(makeView), show };
})();

/** The parts of every view of an inspection: the tokens, the attention weights, and the selection. */
function inspected(data, place) {
  const { make, percent } = page;
  const tokens = data.tokens.map((number) => data.labels[number]);
  const count = tokens.length;
  const bytes = Uint8Array.from(atob(data.attention), (character) => character.charCodeAt(0));
  const weights = new Uint16Array(bytes.buffer); // little-endian, like every machine that runs a browser
  const triangle = (count * (count + 1)) / 2;
  const selection = { token: data.token, layer: data.layer, head: data.head };
  const views = [];

  /** The attention weight of a row's token on a column's, from 0 to 1. */
  function weight(layer, head, row, column) {
    if (column > row) return 0;
    return weights[(layer * data.heads + head) * triangle + (row * (row + 1)) / 2 + column] / 65535;
  }

  /** Calls a view now and whenever the selection changes. */
  function onSelect(view) {
    views.push(view);
    view(selection);
  }

  /** Changes the selection: { token }, { layer, head }. */
  function select(change) {
    if (Object.entries(change).every(([key, value]) => selection[key] === value)) return;
    Object.assign(selection, change);
    for (const view of views) view(selection);
  }

  const bits = (logprob) => Math.max(0, -logprob / Math.LN2);

  /** The most likely tokens after a position according to a layer, as bars; the actual next token is marked. */
  function mostLikely(layer, position) {
    const { top, logprobs } = data.lens[layer];
    const rows = top[position].map((token, rank) => {
      const bar = make("span", { class: "bar" });
      bar.style.inlineSize = `${100 * Math.exp(logprobs[position][rank])}%`;
      const isActual = token === data.tokens[position + 1];
      return make("li", { class: isActual ? "actual" : null },
        make("bdi", {}, data.labels[token]), make("span", { class: "track" }, bar),
        make("span", { class: "number" }, percent(logprobs[position][rank])), isActual ? " ✓" : "");
    });
    return make("ol", { class: "most-likely" }, ...rows);
  }

  /** A token in quotation marks. */
  const quoted = (index) => make("bdi", { class: "quoted" }, `‘${tokens[index]}’`);

  const section = (...content) => page.section(place, ...content);
  return { data, tokens, count, selection, section, weight, onSelect, select, bits, mostLikely, quoted };
}
