"use strict";

/** The curves: loss with baselines, learning rate, speed. */
(() => {
  const { make, section } = page;
  const { runs, several, named } = report;
  const inBits = runs.every((run) => run.bitsPerNat); // needs the number of bytes per token
  const unit = inBits ? "bits per byte" : "nats per token";
  const factor = (run) => (inBits ? run.bitsPerNat : 1);
  const scaled = (run, values) => values.map((value) => (value === null ? null : value * factor(run)));

  const lines = runs.flatMap((run) => {
    const { training, validation } = run;
    return [
      { name: "training", class: run.class, isFaint: true, x: training.step, y: scaled(run, training.loss) },
      { name: "training, smoothed", class: run.class, x: training.step, y: scaled(run, training.mean) },
      { name: "validation", class: several ? `${run.class} dashed` : "second", dots: true, x: validation.step,
        y: inBits ? validation.bits : validation.loss },
    ].map((line) => ({ ...line, name: named(run, line.name), run }));
  });
  const baselines = inBits ? runs.flatMap((run) => run.baselines.map(([name, y]) => ({ run, name, y }))) : [];
  const levels = baselines.filter((level, index) => (  // a single line for a baseline that several runs share
    baselines.findIndex((other) => other.name === level.name && other.y === level.y) === index
  )).map(({ run, name, y }) => (
    { name: baselines.some((other) => other.name === name && other.y !== y) ? named(run, name) : name, y }));
  section("Loss",
    "Lower is better. Training is the loss of each step, with its moving average; validation is the loss on held-out "
    + "text. Dotted lines are baselines: what simple methods such as gzip reach on the same held-out text. Bits per "
    + "byte can be compared between tokenizers; nats per token cannot.",
    chart.draw({
      title: `loss in ${unit}`, label: unit, lines, levels,
      second: inBits && !several ? { label: "nats per token", factor: 1 / runs[0].bitsPerNat } : null,
      formatValue: (line, value) => (inBits
        ? `${value.toFixed(3)} bits per byte, ${(value / line.run.bitsPerNat).toFixed(3)} nats`
        : `${value.toFixed(3)} nats`),
    }));

  const curve = (key, title) => chart.draw({
    title, label: title, from: 0, small: true,
    lines: runs.map((run) => ({ name: named(run, title), class: run.class, x: run[key].step, y: run[key].value })),
  });
  section("Learning rate and speed", "At each step of the run.", make("div", { class: "columns charts" },
    curve("learningRate", "learning rate"), curve("speed", "tokens per second")));
})();
