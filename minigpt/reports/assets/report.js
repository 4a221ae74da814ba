"use strict";

/** The parts of every section of a report: the runs, each with its color, sections that follow their data, sliders. */
const report = (() => {
  const { data, main, make, start } = page;
  const colors = ["first", "second", "third"];
  const runs = data.runs.map((run, index) => ({ ...run, class: colors[index % colors.length] }));
  const several = runs.length > 1;
  const sections = [];
  const states = runs.map((run) => make("span", {}, named(run, run.state)));

  /** A name with the name of its run in front, if there are several runs. */
  function named(run, name) {
    return several ? `${run.name}, ${name}` : name;
  }

  /**
   * Adds a section. `build` returns its content, or null while there is nothing to show; it is called again when one of
   * the entries of the runs' data named in `uses` changes. A folded section opens when its title is selected.
   */
  function section({ title, explanation = null, uses, build, hasHeading = true, isFolded = false }) {
    const content = make("div", {});
    const text = explanation === null ? "" : make("p", { class: "muted" }, explanation);
    const heading = make("h2", {}, title);
    const inside = isFolded
      ? [make("details", {}, make("summary", {}, heading), text, content)]
      : [...(hasHeading ? [heading] : []), text, content];
    const element = make("section", { "aria-label": title }, ...inside);
    const each = { element, content, uses: new Set(uses), build, isStale: false };
    sections.push(each);
    rebuild(each);
    main.append(element);
  }

  /** Builds a section again and keeps the focus in it. A control that is in use, such as a slider, is left alone. */
  function rebuild(each) {
    each.isStale = Boolean(each.content.querySelector("input:active"));
    if (each.isStale) return;
    const stops = () => [...each.content.querySelectorAll("button, input, summary, [tabindex]")];
    const focused = stops().indexOf(document.activeElement);
    const children = each.build();
    each.element.hidden = children === null;
    each.content.replaceChildren(...(children ?? []));
    if (focused >= 0) stops()[focused]?.focus({ preventScroll: true });
  }

  /** Replaces entries of the only run's data, and builds the sections that use them. */
  function update(parts) {
    Object.assign(runs[0], parts);
    states[0].textContent = runs[0].state;
    for (const each of sections) {
      if (each.isStale || Object.keys(parts).some((name) => each.uses.has(name))) rebuild(each);
    }
  }

  /**
   * A slider over steps, which calls `show` with the index of the selected step. It starts at the last step, or at the
   * one that `memory.step` holds from an earlier slider.
   */
  function slider(steps, label, show, memory) {
    const remembered = memory.step === null ? -1 : steps.indexOf(memory.step);
    const last = steps.length - 1;
    const output = make("output", { class: "number" });
    const input = make("input", {
      type: "range", min: 0, max: last, step: 1, "aria-label": label,
      input: () => {
        memory.step = Number(input.value) === last ? null : steps[input.value];
        showStep();
      },
    });
    input.value = remembered < 0 ? last : remembered;
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
  return { runs, several, named, section, update, slider, panels };
})();
