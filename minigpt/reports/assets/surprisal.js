"use strict";

/** A passage of held-out text, with the surprisal of each of its tokens at each evaluation. */
(() => {
  const { make, tint, likelihoodLegend, rovingTabIndex } = page;
  const { runs, section, slider, panels } = report;

  function passages() {
    return panels((run) => run.passage, (run) => {
      const { tokens, rows } = run.passage;
      let [selected, current] = [1, rows.length - 1];
      const details = make("p", { class: "number muted", "aria-live": "polite" });
      const curve = make("div", {});
      const spans = tokens.map((token, index) => make("button", {
        type: "button", class: "token", click: () => select(index), focus: () => select(index),
      }, token.replaceAll("␣", " ")));
      const setStop = rovingTabIndex(spans, tokens.length);
      const label = "the passage, token by token";
      const text = make("div", { class: "text", role: "group", dir: "auto", "aria-label": label });
      spans.forEach((span, index) => text.append(span, tokens[index].includes("↵") ? make("br") : ""));

      function update() {
        const { bits } = rows[current];
        const mean = bits.reduce((sum, value) => sum + value, 0) / bits.length;
        const own = selected === 0 ? "not predicted, nothing comes before it" : `${bits[selected - 1].toFixed(2)} bits`;
        const token = `Token ${selected}, “${tokens[selected]}”`;
        details.textContent = `Mean ${mean.toFixed(2)} bits per token. ${token}: ${own}.`;
      }
      function select(index) {
        spans.forEach((span, other) => span.toggleAttribute("data-selected", other === index));
        selected = index;
        setStop(index);
        update();
        curve.replaceChildren(index === 0 ? "" : chart.draw({
          title: `Surprisal of token ${index}, “${tokens[index]}”, in bits`, from: 0, small: true,
          lines: [{ name: "", class: run.class, dots: true, x: rows.map((row) => row.step),
            y: rows.map((row) => row.bits[index - 1]) }],
          formatValue: (line, value) => `${value.toFixed(2)} bits`,
        }));
      }
      function show(row) {
        current = row;
        spans.slice(1).forEach((span, index) => {
          const bits = rows[row].bits[index];
          tint(span, -bits * Math.LN2);
          span.setAttribute("aria-label", `token ${index + 1}, ${tokens[index + 1]}, ${bits.toFixed(1)} bits`);
        });
        update();
      }
      const control = slider(rows.map((row) => row.step), "evaluation at step", show);
      select(Math.min(1, tokens.length - 1));
      return [control, text, details, curve];
    }, (run) => `No passage was measured: ${run.whyNoPassage}.`);
  }

  section({
    title: "Surprisal",
    explanation: "How unexpected each of the first tokens of the held-out text is to the model, in bits: 0 for a token "
      + "that it was certain of, one more for each halving of the probability. The stronger the color, the less likely. Move the "
      + "slider to see what the model learned when; select a token to see its curve.",
    build: () => {
      const hasPassage = runs.some((run) => run.passage);
      return [hasPassage ? likelihoodLegend("surprisal", ["0 bits", "5 bits", "≥10 bits"]) : "", passages()];
    },
  });
})();
