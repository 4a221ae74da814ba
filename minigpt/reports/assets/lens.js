"use strict";

/** The logit lens: what every layer would have said, had it been the last. */
(() => {
  const { make, section, paint, rove, percent } = page;
  const { data, tokens, count, watch, choose, likelihood, likeliest, quoted } = inspection;
  const cells = [];
  const details = make("div", { class: "panel details", id: "lens", "aria-live": "polite" });

  const head = tokens.map((token, at) => make("th", { scope: "col" }, make("bdi", {}, token), make("small", {}, ` ${at}`)));
  const body = data.lens.map(({ words, logprobs }, layer) => {
    const row = tokens.map((token, at) => {
      const word = data.words[words[at][0]];
      const button = make("button", {
        type: "button", class: words[at][0] === data.tokens[at + 1] ? "came" : null,
        "aria-label": `layer ${layer}, behind token ${at}, ${token}: ${word}, ${percent(logprobs[at][0])}`,
        focus: () => show(layer, at), click: () => show(layer, at), pointerenter: () => show(layer, at),
      }, make("bdi", {}, word));
      paint(button, likelihood(logprobs[at][0]));
      cells.push(button);
      return make("td", {}, button);
    });
    return make("tr", {}, make("th", { scope: "row" }, `layer ${layer}`), ...row);
  });
  const came = make("tr", {}, make("th", { scope: "row" }, "came"),
    ...tokens.map((_, at) => make("td", {}, make("bdi", {}, tokens[at + 1] ?? "?"))));
  const stop = rove(cells, count);
  section("Logit lens",
    "What each layer's output would say comes behind each token, were it read through the final norm and the head; the "
    + "last layer's word is the model's own. Framed where it is what came.",
    make("div", { class: "scroll lens" }, make("table", {},
      make("thead", {}, make("tr", {}, make("th", {}, "behind"), ...head)), make("tbody", {}, ...body, came))),
    details);

  /** Writes what a layer says at a position. */
  function show(layer, at) {
    stop(layer * count + at);
    choose({ token: at });
    const { actual, ranks, entropy } = data.lens[layer];
    const next = at + 1 < count
      ? make("p", { class: "number" }, quoted(at + 1), ` came: ${percent(actual[at])}, rank ${ranks[at] + 1}`)
      : "";
    details.replaceChildren(
      make("div", {}, make("h3", {}, `layer ${layer}, behind ${at} `, quoted(at)), next,
        make("p", { class: "number" }, `entropy ${(entropy[at] / Math.LN2).toFixed(2)} bits`)),
      make("div", {}, make("h3", {}, "likeliest"), likeliest(layer, at)));
  }

  const columns = head.map((each, at) => [each, ...body.map((row) => row.cells[at + 1])]);
  watch(({ token }) => {
    columns.forEach((column, at) => column.forEach((each) => each.toggleAttribute("data-chosen", at === token)));
  });
  show(data.layers - 1, count - 1);
})();
