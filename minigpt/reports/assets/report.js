"use strict";

/** What the parts of a report share: its runs, each with its colour, and sliders over steps. */
const report = (() => {
  const { data, make, begin } = page;
  const colours = ["first", "second", "third"];
  const runs = data.runs.map((run, at) => ({ ...run, class: colours[at % colours.length] }));
  const several = runs.length > 1;

  /** What a line of a run is called: with the run's name where there are several. */
  function named(run, what) {
    return several ? `${run.name}, ${what}` : what;
  }

  /** A slider over some steps, which tells `show` the chosen one's place, and begins with the last. */
  function slider(steps, label, show) {
    const output = make("output", { class: "number" });
    const input = make("input", {
      type: "range", min: 0, max: steps.length - 1, step: 1, value: steps.length - 1, "aria-label": label, input: tell,
    });
    function tell() {
      const at = Number(input.value);
      output.textContent = `step ${steps[at].toLocaleString("en")}`;
      input.setAttribute("aria-valuetext", output.textContent);
      show(at);
    }
    tell();
    return make("div", { class: "slider" }, input, output);
  }

  /** One panel for each run, beside one another; for runs that have nothing to show, `missing` says why. */
  function panels(has, panel, missing) {
    return make("div", { class: "columns runs" }, ...runs.map((run) => make("div", { class: "panel run" },
      several ? make("h3", {}, make("span", { class: `key ${run.class}`, "aria-hidden": "true" }), run.name) : "",
      ...(has(run) ? panel(run) : [make("p", { class: "quiet" }, missing(run))]))));
  }

  begin(runs.map((run) => run.name).join(" and "), ...runs.map((run) => named(run, run.state)));
  return { runs, several, named, slider, panels };
})();
