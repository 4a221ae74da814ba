"use strict";

/** The record of the run, folded: its result, data, model, settings and environment. */
(() => {
  const { make } = page;
  const { runs, several, section } = report;

  function table(title, number) {
    const values = runs.map((run) => new Map(run.tables[number].rows));
    const names = [...new Set(values.flatMap((rows) => [...rows.keys()]))];
    if (!names.length) return "";
    const columns = runs.map((run) => make("th", { scope: "col" }, run.name));
    const head = several ? [make("thead", {}, make("tr", {}, make("td"), ...columns))] : [];
    const body = names.map((name) => {
      const row = values.map((rows) => rows.get(name) ?? "–");
      const differs = several && new Set(row).size > 1;
      return make("tr", differs ? { class: "differs" } : {}, make("th", { scope: "row" }, name),
        ...row.map((value) => make("td", { dir: "auto" }, value)));
    });
    return make("div", { class: "panel" }, make("h3", {}, title),
      make("table", { class: "record number" }, ...head, make("tbody", {}, ...body)));
  }

  section({
    title: several ? "All settings, and how the runs differ" : "All settings and figures", isFolded: true,
    explanation: several ? "Values that differ between the runs are marked."
      : "What minigpt recorded in training.json, without the folders of this machine.",
    build: () => [make("div", { class: "columns tables" },
      ...runs[0].tables.map(({ title }, number) => table(title, number)))],
  });
})();
