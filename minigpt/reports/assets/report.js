"use strict";

/** The parts of every section of a report: the runs, each with its color, sections, sliders. */
const report = (() => {
  const { data, main, make, start } = page;
  const colors = ["first", "second", "third"];
  const runs = data.runs.map((run, index) => ({ ...run, class: colors[index % colors.length] }));
  const several = runs.length > 1;
  const states = runs.map((run) => make("span", {}, named(run, run.state)));

  /** A name with the name of its run in front, if there are several runs. */
  function named(run, name) {
    return several ? `${run.name}, ${name}` : name;
  }

  /** Adds a section, unless `build` returns null. A folded section opens when its title is selected. */
  function section({ title, explanation = null, build, hasHeading = true, isFolded = false }) {
    const children = build();
    if (children === null) return;
    const content = make("div", {}, ...children);
    const text = explanation === null ? "" : make("p", { class: "muted" }, explanation);
    const heading = make("h2", {}, title);
    const inside = isFolded
      ? [make("details", {}, make("summary", {}, heading), text, content)]
      : [...(hasHeading ? [heading] : []), text, content];
    main.append(make("section", { "aria-label": title }, ...inside));
  }

  /** A loss, in nats per token or bits per byte, as the terminal shows it. */
  const shownLoss = (value) => value.toFixed(4);

  /** A slider over steps, which calls `show` with the index of the selected step. It starts at the last step. */
  function slider(steps, label, show) {
    const last = steps.length - 1;
    const output = make("output", { class: "number" });
    const input = make("input", {
      type: "range", min: 0, max: last, step: 1, value: last, "aria-label": label, input: () => showStep(),
    });
    function showStep() {
      const index = Number(input.value);
      output.textContent = `step ${steps[index].toLocaleString("en")}`;
      input.setAttribute("aria-valuetext", output.textContent);
      show(index);
    }
    showStep();
    return make("div", { class: "slider" }, input, output);
  }

  /** One panel for each run, side by side; for a run without content, `missing` says why. */
  function panels(hasContent, content, missing) {
    return make("div", { class: "columns runs" }, ...runs.map((run, index) => make("div", { class: "panel run" },
      several ? make("h3", {}, make("span", { class: `key ${run.class}`, "aria-hidden": "true" }), run.name) : "",
      ...(hasContent(run) ? content(run, index) : [make("p", { class: "muted" }, missing(run))]))));
  }

  start(runs.map((run) => run.name).join(" and "), ...states);
  return { runs, several, named, section, slider, panels, shownLoss };
})();
