"use strict";

/** The text, with each token colored by its probability, and the most likely tokens at and after its position. */
inspection.addView((parts) => {
  const { make, tint, likelihoodLegend, rovingTabIndex, percent } = page;
  const { data, tokens, count, onSelect, section, select, bits, mostLikely, quoted } = parts;
  const prediction = data.lens[data.layers - 1];

  const buttons = tokens.map((token, index) => {
    const logprob = index > 0 ? prediction.actual[index - 1] : null;
    const button = make("button", {
      type: "button", class: "token",
      "aria-label": `token ${index}, ${token}${logprob === null ? "" : `, probability ${percent(logprob)}`}`,
      focus: () => select({ token: index }), click: () => select({ token: index }),
    }, token.replaceAll("␣", " "));
    if (logprob !== null) tint(button, logprob);
    return button;
  });
  const setStop = rovingTabIndex(buttons, count);
  const text = make("div", { class: "text", role: "group", "aria-label": "the text, token by token", dir: "auto" });
  buttons.forEach((button, index) => text.append(button, tokens[index].includes("↵") ? make("br") : ""));
  const details = make("div", { class: "panel details", id: "token", "aria-live": "polite" });
  section("Text",
    "Each token is colored by the probability that the model gave it, from the text before it: the stronger the color, "
    + "the less likely. Select a token with the mouse or the arrow keys. Surprisal is −log₂ of the probability.",
    likelihoodLegend(), text, details);

  onSelect(({ token }) => {
    buttons.forEach((button, index) => button.toggleAttribute("data-selected", index === token));
    setStop(token);
    const facts = make("div", {}, make("h3", {}, `token ${token} `, quoted(token)));
    if (token > 0) {
      const position = token - 1;
      facts.append(make("dl", { class: "number" },
        make("dt", {}, "probability"), make("dd", {}, percent(prediction.actual[position])),
        make("dt", {}, "surprisal"), make("dd", {}, `${bits(prediction.actual[position]).toFixed(2)} bits`),
        make("dt", {}, "rank"), make("dd", {}, `${prediction.ranks[position] + 1}`),
        make("dt", {}, "entropy"), make("dd", {}, `${(prediction.entropy[position] / Math.LN2).toFixed(2)} bits`)));
    } else {
      facts.append(make("p", { class: "muted" }, "The first token: nothing comes before it, so it is not predicted."));
    }
    details.replaceChildren(facts,
      token > 0 ? make("div", {}, make("h3", {}, "most likely here"), mostLikely(data.layers - 1, token - 1)) : "",
      make("div", {}, make("h3", {}, "most likely next"), mostLikely(data.layers - 1, token)));
  });
});
