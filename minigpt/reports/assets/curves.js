"use strict";

/** The curves: loss against baselines, learning rate, throughput. */
(() => {
  const { make, section } = page;
  const { runs, several, named } = report;
  const known = runs.every((run) => run.bitsPerNat);
  const unit = known ? "bits per byte" : "nats per token";
  const factor = (run) => (known ? run.bitsPerNat : 1);
  const scaled = (run, values) => values.map((value) => (value === null ? null : value * factor(run)));

  const lines = runs.flatMap((run) => {
    const { training, validation } = run;
    return [
      { name: "training", class: run.class, quiet: true, x: training.step, y: scaled(run, training.loss) },
      { name: "training, smoothed", class: run.class, x: training.step, y: scaled(run, training.mean) },
      { name: "validation", class: several ? `${run.class} dashed` : "second", dots: true, x: validation.step,
        y: known ? validation.bits : validation.loss },
    ].map((line) => ({ ...line, name: named(run, line.name), run }));
  });
  const measured = known ? runs.flatMap((run) => run.baselines.map(([name, y]) => ({ run, name, y }))) : [];
  const levels = measured.filter((level, at) => (  // one line for what runs on the same text have in common
    measured.findIndex((other) => other.name === level.name && other.y === level.y) === at
  )).map(({ run, name, y }) => (
    { name: measured.some((other) => other.name === name && other.y !== y) ? named(run, name) : name, y }));
  section("Loss",
    "The lower the better. Training is the loss of single steps, and their moving mean; validation is text that was "
    + "held out. The level lines are what simple methods make of the same held-out text. Bits per byte compare runs with "
    + "different tokenizers; nats per token do not.",
    chart.draw({
      title: `loss in ${unit}`, label: unit, lines, levels,
      second: known && !several ? { label: "nats per token", factor: 1 / runs[0].bitsPerNat } : null,
      say: (line, value) => (known
        ? `${value.toFixed(3)} bits per byte, ${(value / line.run.bitsPerNat).toFixed(3)} nats`
        : `${value.toFixed(3)} nats`),
    }));

  const curve = (key, label, title) => chart.draw({
    title, label, from: 0, small: true,
    lines: runs.map((run) => ({ name: named(run, title), class: run.class, x: run[key].step, y: run[key].value })),
  });
  section("Learning rate and speed", "As they were at each step.", make("div", { class: "columns charts" },
    curve("rate", "rate", "learning rate"), curve("speed", "tokens a second", "tokens per second")));
})();
