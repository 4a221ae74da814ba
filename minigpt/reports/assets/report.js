"use strict";

/** The parts of every section of a report: the runs, each with its color, and sliders over steps. */
const report = (() => {
  const { data, make, start } = page;
  const colors = ["first", "second", "third"];
  const runs = data.runs.map((run, index) => ({ ...run, class: colors[index % colors.length] }));
  const several = runs.length > 1;

  /** A name with the name of its run in front, if there are several runs. */
  function named(run, name) {
    return several ? `${run.name}, ${name}` : name;
  }

  /** A slider over steps, which starts at the last; calls `show` with the index of the selected step. */
  function slider(steps, label, show) {
    const output = make("output", { class: "number" });
    const input = make("input", {
      type: "range", min: 0, max: steps.length - 1, step: 1, value: steps.length - 1, "aria-label": label,
      input: update,
    });
    function update() {
      const index = Number(input.value);
      output.textContent = `step ${steps[index].toLocaleString("en")}`;
      input.setAttribute("aria-valuetext", output.textContent);
      show(index);
    }
    update();
    return make("div", { class: "slider" }, input, output);
  }

  /** One panel for each run, side by side; for a run without content, `missing` says why. */
  function panels(hasContent, content, missing) {
    return make("div", { class: "columns runs" }, ...runs.map((run) => make("div", { class: "panel run" },
      several ? make("h3", {}, make("span", { class: `key ${run.class}`, "aria-hidden": "true" }), run.name) : "",
      ...(hasContent(run) ? content(run) : [make("p", { class: "muted" }, missing(run))]))));
  }

  start(runs.map((run) => run.name).join(" and "), ...runs.map((run) => named(run, run.state)));
  return { runs, several, named, slider, panels };
})();
