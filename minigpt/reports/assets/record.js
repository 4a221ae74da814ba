"use strict";

/** The record of the run: its result, data, model, settings and environment. */
(() => {
  const { make, section } = page;
  const { runs, several } = report;

  const tables = runs[0].tables.map(({ title }, number) => {
    const values = runs.map((run) => new Map(run.tables[number].rows));
    const names = [...new Set(values.flatMap((rows) => [...rows.keys()]))];
    const columns = runs.map((run) => make("th", { scope: "col" }, run.name));
    const head = several ? [make("thead", {}, make("tr", {}, make("td"), ...columns))] : [];
    const body = names.map((name) => {
      const row = values.map((rows) => rows.get(name) ?? "–");
      const differs = several && new Set(row).size > 1;
      return make("tr", differs ? { class: "differs" } : {}, make("th", { scope: "row" }, name),
        ...row.map((value) => make("td", {}, value)));
    });
    return names.length
      ? make("div", { class: "panel scroll" }, make("h3", {}, title), make("table", { class: "record number" }, ...head,
        make("tbody", {}, ...body)))
      : "";
  });
  section("Record", several ? "Values that differ between the runs are marked." : "The contents of training.json.",
    make("div", { class: "columns" }, ...tables));
})();
