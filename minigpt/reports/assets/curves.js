"use strict";

/** The curves: loss with baselines, learning rate, speed. */
(() => {
  const { make } = page;
  const { runs, several, named, section, shownLoss } = report;
  const FIRST_STEPS = 0.03; // of a run, whose high losses would flatten the rest of the curve

  /** The unit of the loss, and the factor of each run to it; bits per byte need the number of bytes per token. */
  function scaleOf() {
    const inBits = runs.every((run) => run.bitsPerNat);
    const factor = (run) => (inBits ? run.bitsPerNat : 1);
    return { inBits, unit: inBits ? "bits per byte" : "nats per token", factor };
  }

  function linesOf({ inBits, factor }) {
    const scaled = (run, values) => values.map((value) => (value === null ? null : value * factor(run)));
    return runs.flatMap((run) => {
      const { training, validation, teacher } = run;
      const taught = teacher ? [{ name: "its teacher, validation", class: several ? `${run.class} dotted` : "third", dots: true,
        x: teacher.validation.step, y: inBits ? teacher.validation.bits : teacher.validation.loss }] : [];
      return [
        { name: "training", class: run.class, isFaint: true, x: training.step, y: scaled(run, training.loss) },
        { name: "training, smoothed", class: run.class, x: training.step, y: scaled(run, training.mean) },
        { name: "validation", class: several ? `${run.class} dashed` : "second", dots: true, x: validation.step,
          y: inBits ? validation.bits : validation.loss },
        ...taught,
      ].map((line) => ({ ...line, name: named(run, line.name), run }));
    });
  }

  /** The baselines as horizontal lines; a single line for one that several runs share. */
  function levelsOf() {
    const baselines = runs.flatMap((run) => run.baselines.map(([name, y]) => ({ run, name, y })));
    return baselines.filter((level, index) => (
      baselines.findIndex((other) => other.name === level.name && other.y === level.y) === index
    )).map(({ run, name, y }) => (
      { name: baselines.some((other) => other.name === name && other.y !== y) ? named(run, name) : name, y }));
  }

  /** The highest value that the loss chart shows: that of the curves after the first steps, or of a baseline. */
  function topOf(lines, levels) {
    const last = Math.max(...lines.flatMap((line) => line.x));
    const later = lines.flatMap((line) => line.y.filter((value, index) => (
      value !== null && line.x[index] >= FIRST_STEPS * last)));
    return Math.max(...later, ...levels.map((level) => level.y));
  }

  section({
    title: "Loss",
    explanation: "How badly the model predicts: lower is better. Training is the loss of each step on the text that it "
      + "learns from; validation is the loss on held-out text. Dotted lines show what simple methods reach on the same "
      + "held-out text; with a star, on part of it."
      + (runs.some((run) => run.teacher) ? " A teacher was trained first, with its own steps; the model's training loss "
        + "compares it with the text and with its teacher." : ""),
    build: () => {
      const scale = scaleOf();
      const lines = linesOf(scale);
      const levels = scale.inBits ? levelsOf() : [];
      return [chart.draw({
        title: `Loss in ${scale.unit}`, lines, levels, top: topOf(lines, levels),
        formatValue: (line, value) => (scale.inBits
          ? `${shownLoss(value)} bits per byte, ${shownLoss(value / line.run.bitsPerNat)} nats per token`
          : `${shownLoss(value)} nats per token`),
      })];
    },
  });

  const curve = (key, title) => chart.draw({
    title, from: 0, small: true,
    lines: runs.map((run) => (
      { name: several ? run.name : "", class: run.class, x: run[key].step, y: run[key].value })),
  });
  section({
    title: "Learning rate and speed",
    build: () => [make("div", { class: "columns charts" },
      curve("learningRate", "Learning rate"), curve("speed", "Tokens per second"))],
  });
})();
