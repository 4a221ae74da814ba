"use strict";

/** What the model wrote on the way, always from the same prompt and seed, and how much of it is copied. */
(() => {
  const { make, section } = page;
  const { runs, named, slider, panels } = report;

  /** The text with its long copied runs marked. */
  function marked(sample) {
    const characters = [...sample.text];  // the spans count characters, not halves of them
    const parts = [make("b", {}, sample.prompt)];
    let done = 0;
    for (const [start, end] of sample.spans) {
      parts.push(characters.slice(done, start).join(""), make("mark", {}, characters.slice(start, end).join("")));
      done = end;
    }
    return make("div", { class: "sample", dir: "auto" }, ...parts, characters.slice(done).join(""));
  }

  function measured(sample) {
    if (sample.words === null) return "Not measured against the training text.";
    const words = `${sample.words.toLocaleString("en")} word${sample.words === 1 ? "" : "s"}`;
    return `Longest run copied from the training text: ${words}; ${(100 * sample.share).toFixed(0)} % of the sample is `
      + `in runs of ${sample.atLeast} words or more, which are marked.`;
  }

  const copying = (key, scale) => runs.map((run) => {
    const samples = run.samples.filter((sample) => sample.words !== null);
    return {
      name: named(run, key === "words" ? "longest copied run" : "copied share"), class: run.class, dots: true,
      x: samples.map((sample) => sample.step), y: samples.map((sample) => scale * sample[key]),
    };
  });

  section("Samples",
    "The same prompt and seed every time: what changes is the model. Move the slider to go through the run.",
    panels((run) => run.samples.length, (run) => {
      const text = make("div", {});
      const words = make("p", { class: "quiet" });
      const show = (at) => {
        text.replaceChildren(marked(run.samples[at]));
        words.textContent = measured(run.samples[at]);
      };
      return [slider(run.samples.map((sample) => sample.step), "sample at step", show), text, words];
    }, () => "No sample was drawn."));
  section("Copying",
    "How much of each sample stands in the training text, word for word. Runs of a few words are the language's own; "
    + "long ones that grow while validation stands still are a text learnt by heart.",
    make("div", { class: "columns charts" },
      chart.draw({ small: true, title: "longest copied run, in words", label: "words", from: 0, to: 8,
        lines: copying("words", 1) }),
      chart.draw({ small: true, title: "share of the sample in long copied runs", label: "per cent", from: 0, to: 10,
        lines: copying("share", 100), say: (line, value) => `${value.toFixed(0)} %` })));
})();
