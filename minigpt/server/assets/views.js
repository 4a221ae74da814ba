"use strict";

/** The tabs, and what those beside the first show: the inspection of a text, and the report of a model. */
const views = (() => {
  const { make } = page;
  const find = (id) => document.getElementById(id);
  const NAMES = ["write", "inspect", "report"];
  let asked = 0; // the number of the latest request for an inspection or a report

  /** Lets the tabs select their panels; `onOpen` is called with the name of the opened one. */
  function start(onOpen) {
    const tabs = NAMES.map((name) => find(`tab-${name}`));
    function select(name) {
      NAMES.forEach((other, index) => {
        tabs[index].setAttribute("aria-selected", String(other === name));
        tabs[index].tabIndex = other === name ? 0 : -1;
        find(other).hidden = other !== name;
      });
      onOpen(name);
    }
    tabs.forEach((tab, index) => {
      tab.addEventListener("click", () => select(NAMES[index]));
      tab.addEventListener("keydown", (event) => {
        const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
        if (step === undefined) return;
        const next = (index + step + NAMES.length) % NAMES.length;
        tabs[next].focus();
        select(NAMES[next]);
      });
    });
    select("write");
  }

  /** Fills a place with what a request leads to, unless a later request has begun; says what is being done. */
  async function fill(status, place, doing, build) {
    const number = ++asked;
    status.textContent = doing;
    place.replaceChildren();
    try {
      const done = await build();
      if (number === asked) status.textContent = done();
    } catch (error) {
      if (number === asked) status.textContent = `This cannot be shown: ${error.message}.`;
    }
  }

  /** Shows the inspection of a text: { model, prompt } as /inspect takes it. */
  function showInspection(text) {
    const place = find("inspection");
    return fill(find("inspect-status"), place, "The model reads the text …", async () => {
      const found = await api.ask("inspect", text);
      return () => {
        inspection.show(found, place);
        const skipped = found.skipped > 0 ? `; the ${found.skipped} before them are not shown` : "";
        return `${found.model}, ${found.layers} layers × ${found.heads} heads, ${found.tokens.length} tokens${skipped}`;
      };
    });
  }

  /** Shows the report of a model in a frame that can reach neither this page nor the server. */
  function showReport(model) {
    const place = find("report-frame");
    return fill(find("report-status"), place, "The report is being made …", async () => {
      const response = await api.send(`report?model=${encodeURIComponent(model)}`);
      const content = await response.text();
      return () => {
        place.append(make("iframe", { title: `report of ${model}`, sandbox: "allow-scripts", srcdoc: content }));
        return "";
      };
    });
  }

  return { start, showInspection, showReport };
})();
