"use strict";

/** The text itself: each token on the colour of its probability, and what was expected in its place. */
(() => {
  const { make, section, paint, legend, rove, percent } = page;
  const { data, tokens, count, watch, choose, likelihood, bits, likeliest, quoted } = inspection;
  const own = data.lens[data.layers - 1];

  const buttons = tokens.map((token, at) => {
    const logprob = at > 0 ? own.actual[at - 1] : null;
    const button = make("button", {
      type: "button", class: "token",
      "aria-label": `token ${at}, ${token}${logprob === null ? "" : `, probability ${percent(logprob)}`}`,
      focus: () => choose({ token: at }), click: () => choose({ token: at }),
    }, token.replaceAll("␣", " "));
    if (logprob !== null) paint(button, likelihood(logprob));
    return button;
  });
  const stop = rove(buttons, count);
  const text = make("div", { class: "text", role: "group", "aria-label": "the text, token by token", dir: "auto" });
  buttons.forEach((button, at) => text.append(button, tokens[at].includes("↵") ? make("br") : ""));
  const details = make("div", { class: "panel details", id: "token", "aria-live": "polite" });
  section("Text",
    "Each token by the probability the model gave it before it came. Choose one with the mouse or the arrow keys.",
    legend("probability", "≤ 0.1 %", "0.6 %", "3 %", "18 %", "100 %"), text, details);

  watch(({ token }) => {
    buttons.forEach((button, at) => button.toggleAttribute("data-chosen", at === token));
    stop(token);
    const facts = make("div", {}, make("h3", {}, `token ${token} `, quoted(token)));
    if (token > 0) {
      const at = token - 1;
      facts.append(make("dl", { class: "number" },
        make("dt", {}, "probability"), make("dd", {}, percent(own.actual[at])),
        make("dt", {}, "surprise"), make("dd", {}, `${bits(own.actual[at]).toFixed(2)} bits`),
        make("dt", {}, "rank"), make("dd", {}, `${own.ranks[at] + 1}`),
        make("dt", {}, "entropy"), make("dd", {}, `${(own.entropy[at] / Math.LN2).toFixed(2)} bits`)));
    } else {
      facts.append(make("p", { class: "quiet" }, "Nothing came before it, so nothing predicted it."));
    }
    details.replaceChildren(facts,
      token > 0 ? make("div", {}, make("h3", {}, "expected in its place"), likeliest(data.layers - 1, token - 1)) : "",
      make("div", {}, make("h3", {}, "expected behind it"), likeliest(data.layers - 1, token)));
  });
})();
