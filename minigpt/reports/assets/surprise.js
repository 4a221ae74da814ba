"use strict";

/** One passage that was held out, and how surprising each of its tokens was at each evaluation. */
(() => {
  const { make, section, paint, legend, rove } = page;
  const { runs, slider, panels } = report;
  const DARKEST = 10;  // bits

  section("Surprise",
    "The first tokens of the held-out text, each on the colour of what it cost the model: what it knew is bright. The "
    + "first token has nothing before it. Move the slider to see what was learnt when; choose a token to see its course.",
    runs.some((run) => run.passage) ? legend("surprise", "≥ 10 bits", "5 bits", "0 bits") : "",
    panels((run) => run.passage, (run) => {
      const { tokens, rows } = run.passage;
      let [chosen, current] = [1, rows.length - 1];
      const details = make("p", { class: "number quiet", "aria-live": "polite" });
      const course = make("div", {});
      const spans = tokens.map((token, at) => make("button", {
        type: "button", class: "token", click: () => choose(at), focus: () => choose(at),
      }, token.replaceAll("␣", " ")));
      const stop = rove(spans, tokens.length);
      const label = "the passage, token by token";
      const text = make("div", { class: "text", role: "group", dir: "auto", "aria-label": label });
      spans.forEach((span, at) => text.append(span, tokens[at].includes("↵") ? make("br") : ""));

      function tell() {
        const { bits } = rows[current];
        const mean = bits.reduce((sum, value) => sum + value, 0) / bits.length;
        const own = chosen === 0 ? "nothing came before it" : `${bits[chosen - 1].toFixed(2)} bits`;
        details.textContent = `Mean ${mean.toFixed(2)} bits per token. Token ${chosen}, “${tokens[chosen]}”: ${own}.`;
      }
      function choose(at) {
        spans.forEach((span, place) => span.toggleAttribute("data-chosen", place === at));
        chosen = at;
        stop(at);
        tell();
        course.replaceChildren(at === 0 ? "" : chart.draw({
          title: `surprise of token ${at}, “${tokens[at]}”`, label: "bits", from: 0, small: true,
          lines: [{ name: "surprise", class: run.class, dots: true, x: rows.map((row) => row.step),
            y: rows.map((row) => row.bits[at - 1]) }],
          say: (line, value) => `${value.toFixed(2)} bits`,
        }));
      }
      function show(row) {
        current = row;
        spans.slice(1).forEach((span, at) => {
          const bits = rows[row].bits[at];
          paint(span, 1 - Math.min(DARKEST, bits) / DARKEST);
          span.setAttribute("aria-label", `token ${at + 1}, ${tokens[at + 1]}, ${bits.toFixed(1)} bits`);
        });
        tell();
      }
      const control = slider(rows.map((row) => row.step), "evaluation at step", show);
      choose(Math.min(1, tokens.length - 1));
      return [control, text, details, course];
    }, (run) => `No passage was measured: ${run.whyNoPassage}.`));
})();
