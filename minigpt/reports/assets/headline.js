"use strict";

/** What a person asks first: how good the model is, compared with simple methods, what it writes, and what it is. */
(() => {
  const { make } = page;
  const { runs, several, section, shownLoss } = report;

  /** The run among the methods that it is compared with, the best first, as bars. */
  function methods(run) {
    const { bits, methods: others } = run.headline;
    const own = { name: several ? run.name : "this model", uses: "", bits, isOwn: true };
    const rows = [...others, ...(bits === null ? [] : [own])].sort((a, b) => a.bits - b.bits);
    const most = Math.max(...rows.map((row) => row.bits));
    return make("ol", { class: "methods", "aria-label": "bits per byte" }, ...rows.map((row) => {
      const bar = make("span", { class: `bar ${row.isOwn ? run.class : ""}` });
      bar.style.inlineSize = `${100 * row.bits / most}%`;
      return make("li", { class: row.isOwn ? "own" : row.isPartial ? "partial" : null },
        make("span", { class: "name", dir: "auto" }, row.name),
        make("span", { class: "number" }, shownLoss(row.bits)),
        make("span", { class: "track", "aria-hidden": "true" }, bar),
        row.uses ? make("span", { class: "uses" }, row.uses) : "");
    }));
  }

  const key = (run) => make("span", { class: `key ${run.class}`, "aria-hidden": "true" });

  function quality(run) {
    const { bits, verdict, meaning, methods: others } = run.headline;
    const figure = bits === null ? [] : [
      make("p", { class: "figure" }, make("strong", { class: "number" }, shownLoss(bits)), " bits per byte"),
      make("p", { class: "verdict" }, verdict),
    ];
    return make("div", { class: "panel quality" },
      make("h3", {}, ...(several ? [key(run), run.name] : ["How good is it?"])),
      ...figure, make("p", { class: "muted" }, meaning), others.length ? methods(run) : "");
  }

  function sample(run) {
    const last = run.samples.at(-1);
    if (!last) return "";
    return make("div", { class: "panel" }, make("h3", {}, "What it writes"),
      make("blockquote", { class: "written", dir: "auto" }, make("b", {}, last.prompt), `${last.text.trimEnd()} …`),
      make("p", { class: "muted" }, `Written at step ${last.step.toLocaleString("en")}`
        + `${last.bestOf > 1 ? `, the most likely of ${last.bestOf} texts` : ""}`
        + `${last.prompt ? "; the start, in bold, was given" : ""}.`));
  }

  /** A text whose file names may be broken after their signs. */
  const breakable = (text) => text.split(/(?<=[_./-])(?=\p{L})/u).flatMap((part) => [part, make("wbr")]);

  function facts(run) {
    return make("dl", { class: "facts" }, ...run.headline.facts.map(([name, value, detail]) => (
      make("div", { class: "panel" }, make("dt", {}, name), make("dd", {}, make("strong", {}, value),
        make("span", { class: "muted", dir: "auto" }, ...breakable(detail)))))));
  }

  const plan = (run) => (run.headline.plan
    ? make("p", { class: "plan", dir: "auto" }, make("strong", {}, "Plan: "), run.headline.plan)
    : "");
  const advice = (run) => (run.headline.nextSteps.length
    ? make("div", { class: "panel advice" }, make("h3", {}, several ? `What next? ${run.name}` : "What next?"),
      ...run.headline.nextSteps.flatMap((step) => [make("p", { dir: "auto" }, step.text),
        ...step.commands.map((command) => make("pre", {}, make("code", {}, command)))]))
    : "");
  const stack = (...children) => make("div", { class: "stack" }, ...children);

  section({
    title: "Summary", hasHeading: false,
    build: () => (several
      ? [make("div", { class: "headline" }, ...runs.map((run) => (
        stack(quality(run), sample(run), facts(run), plan(run), advice(run)))))]
      : runs.flatMap((run) => [
        make("div", { class: "headline" }, stack(quality(run)), stack(sample(run), facts(run))), plan(run), advice(run)])),
  });
})();
