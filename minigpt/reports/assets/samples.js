"use strict";

/** The samples that the model generated during training, and how much of each is copied from the training text. */
(() => {
  const { make } = page;
  const { runs, several, section, slider, panels } = report;

  /** A sample with its long copied runs marked. */
  function marked(sample) {
    const characters = [...sample.text];  // the spans count code points, a JavaScript string counts UTF-16 units
    const parts = [make("b", {}, sample.prompt)];
    let done = 0;
    for (const [start, end] of sample.copiedSpans) {
      parts.push(characters.slice(done, start).join(""), make("mark", {}, characters.slice(start, end).join("")));
      done = end;
    }
    return make("div", { class: "sample written", dir: "auto" }, ...parts, characters.slice(done).join(""));
  }

  function summary(sample) {
    const chosen = sample.bestOf > 1 ? `The most likely of ${sample.bestOf} texts. ` : "";
    if (sample.longestRun === null) return `${chosen}Not compared with the training text.`;
    return `${chosen}Copied from the training text: ${(100 * sample.copiedShare).toFixed(0)}% of it, in marked runs of `
      + `${sample.minText} or more; longest run ${sample.longestText}.`;
  }

  const copiedLines = (key, scale) => runs.map((run) => {
    const samples = run.samples.filter((sample) => sample.longestRun !== null);
    return {
      name: several ? run.name : "", class: run.class, dots: true,
      x: samples.map((sample) => sample.step), y: samples.map((sample) => scale * sample[key]),
    };
  });

  section({
    title: "Samples",
    explanation: "Text that the model wrote during training, always with the same start and random seed, so that only "
      + "the model changes. The last one is the most likely of several texts. Move the slider to see the samples of other steps.",
    build: () => [panels((run) => run.samples.length, (run) => {
      const text = make("div", {});
      const copied = make("p", { class: "muted" });
      const show = (number) => {
        text.replaceChildren(marked(run.samples[number]));
        copied.textContent = summary(run.samples[number]);
      };
      return [slider(run.samples.map((sample) => sample.step), "sample at step", show), text, copied];
    }, () => "No samples were generated.")],
  });

  section({
    title: "Copied from the training text",
    explanation: "How much of each sample is copied word for word from the training text. Every text shares short runs "
      + "of words with others. Long runs that grow while the validation loss no longer falls mean memorization.",
    build: () => (runs.every((run) => run.samples.every((sample) => sample.longestRun === null)) ? null : [
      make("div", { class: "columns charts" },
        chart.draw({ small: true, title: "Longest copied run (words)", from: 0, to: 8,
          lines: copiedLines("longestRun", 1) }),
        chart.draw({ small: true, title: "Words in long copied runs (percent)", from: 0, to: 10,
          lines: copiedLines("copiedShare", 100), formatValue: (line, value) => `${value.toFixed(0)}%` }))]),
  });
})();
