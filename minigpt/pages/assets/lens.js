"use strict";

/** The logit lens: the next token that each layer's output predicts. */
inspection.addView((parts) => {
  const { make, tint, likelihoodLegend, rovingTabIndex, percent } = page;
  const { data, tokens, count, onSelect, section, select, selection, mostLikely, quoted } = parts;
  const cells = [];
  const details = make("div", { class: "panel details", id: "lens", "aria-live": "polite" });

  const head = tokens.map((token, position) => (
    make("th", { scope: "col" }, make("bdi", {}, token), make("small", {}, ` ${position}`))));
  const body = data.lens.map(({ top, logprobs }, layer) => {
    const row = tokens.map((token, position) => {
      const label = data.labels[top[position][0]];
      const button = make("button", {
        type: "button", class: top[position][0] === data.tokens[position + 1] ? "actual" : null,
        "aria-label": `layer ${layer}, after token ${position}, ${token}: ${label}, ${percent(logprobs[position][0])}`,
        focus: () => show(layer, position), click: () => show(layer, position),
        pointerenter: () => show(layer, position),
      }, make("bdi", {}, label));
      tint(button, logprobs[position][0]);
      cells.push(button);
      return make("td", {}, button);
    });
    return make("tr", {}, make("th", { scope: "row" }, `layer ${layer}`), ...row);
  });
  const actual = make("tr", {}, make("th", { scope: "row" }, "actual"),
    ...tokens.map((_, position) => make("td", {}, make("bdi", {}, tokens[position + 1] ?? "?"))));
  const setStop = rovingTabIndex(cells, count);
  section("Logit lens",
    "The most likely next token after each token, if the model ended with this layer: the layer's output is read "
    + "through the final norm and the output head. The last layer's row is the model's prediction. A frame marks a "
    + "correct prediction. The stronger the color, the less likely the layer finds its own prediction.",
    likelihoodLegend(),
    make("div", { class: "scroll lens" }, make("table", {},
      make("thead", {}, make("tr", {}, make("th", {}, "after"), ...head)), make("tbody", {}, ...body, actual))),
    details);

  /** Shows what a layer predicts after a position. */
  function show(layer, position) {
    setStop(layer * count + position);
    select({ token: position });
    const lens = data.lens[layer];
    const next = position + 1 < count
      ? make("p", { class: "number" }, "actual next token ", quoted(position + 1),
        `: ${percent(lens.actual[position])}, rank ${lens.ranks[position] + 1}`)
      : "";
    details.replaceChildren(
      make("div", {}, make("h3", {}, `layer ${layer}, after token ${position} `, quoted(position)), next,
        make("p", { class: "number" }, `entropy ${(lens.entropy[position] / Math.LN2).toFixed(2)} bits`)),
      make("div", {}, make("h3", {}, "most likely next"), mostLikely(layer, position)));
  }

  const columns = head.map((cell, position) => [cell, ...body.map((row) => row.cells[position + 1])]);
  onSelect(({ token }) => {
    columns.forEach((column, position) => (
      column.forEach((cell) => cell.toggleAttribute("data-selected", position === token))));
  });
  show(data.layers - 1, selection.token);
});
