"use strict";

/** The samples that the model generated during training, and how much of each is copied from the training text. */
(() => {
  const { make, section } = page;
  const { runs, named, slider, panels } = report;

  /** A sample with its long copied runs marked. */
  function marked(sample) {
    const characters = [...sample.text];  // the spans count code points, a JavaScript string counts UTF-16 units
    const parts = [make("b", {}, sample.prompt)];
    let done = 0;
    for (const [start, end] of sample.copiedSpans) {
      parts.push(characters.slice(done, start).join(""), make("mark", {}, characters.slice(start, end).join("")));
      done = end;
    }
    return make("div", { class: "sample", dir: "auto" }, ...parts, characters.slice(done).join(""));
  }

  function summary(sample) {
    if (sample.longestRun === null) return "Not compared with the training text.";
    const words = `${sample.longestRun.toLocaleString("en")} word${sample.longestRun === 1 ? "" : "s"}`;
    return `Copied from the training text: ${(100 * sample.copiedShare).toFixed(0)}% of the words, in marked runs of `
      + `${sample.minWords} words or more; longest run ${words}.`;
  }

  const copiedLines = (key, name, scale) => runs.map((run) => {
    const samples = run.samples.filter((sample) => sample.longestRun !== null);
    return {
      name: named(run, name), class: run.class, dots: true,
      x: samples.map((sample) => sample.step), y: samples.map((sample) => scale * sample[key]),
    };
  });

  section("Samples",
    "Text generated during training, always with the same prompt and seed, so that only the model changes. Move the "
    + "slider to see the samples of other steps.",
    panels((run) => run.samples.length, (run) => {
      const text = make("div", {});
      const copied = make("p", { class: "muted" });
      const show = (index) => {
        text.replaceChildren(marked(run.samples[index]));
        copied.textContent = summary(run.samples[index]);
      };
      return [slider(run.samples.map((sample) => sample.step), "sample at step", show), text, copied];
    }, () => "No samples were generated."));
  section("Memorization",
    "How much of each sample is copied word for word from the training text. Any text shares runs of a few words. Long "
    + "runs that grow while the validation loss no longer improves are memorization.",
    make("div", { class: "columns charts" },
      chart.draw({ small: true, title: "longest copied run (words)", label: "words", from: 0, to: 8,
        lines: copiedLines("longestRun", "longest copied run", 1) }),
      chart.draw({ small: true, title: "share of the words in long copied runs", label: "percent", from: 0, to: 10,
        lines: copiedLines("copiedShare", "copied share", 100),
        formatValue: (line, value) => `${value.toFixed(0)}%` })));
})();
