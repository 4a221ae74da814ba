"use strict";

/** What the run was: result, data with its hashes, model, settings and environment; where two differ is marked. */
(() => {
  const { make, section } = page;
  const { runs, several } = report;
  const titles = runs[0].tables.map((table) => table.title);

  const tables = titles.map((title, number) => {
    const found = runs.map((run) => new Map(run.tables[number].rows));
    const names = [...new Set(found.flatMap((rows) => [...rows.keys()]))];
    const columns = runs.map((run) => make("th", { scope: "col" }, run.name));
    const head = several ? [make("thead", {}, make("tr", {}, make("td"), ...columns))] : [];
    const body = names.map((name) => {
      const values = found.map((rows) => rows.get(name) ?? "–");
      const differs = several && new Set(values).size > 1;
      return make("tr", differs ? { class: "differs" } : {}, make("th", { scope: "row" }, name),
        ...values.map((value) => make("td", {}, value)));
    });
    return names.length
      ? make("div", { class: "panel scroll" }, make("h3", {}, title), make("table", { class: "record number" }, ...head,
        make("tbody", {}, ...body)))
      : "";
  });
  section("Record", several ? "Where the runs differ is marked." : "What training.json says.",
    make("div", { class: "columns" }, ...tables));
})();
