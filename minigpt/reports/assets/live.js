"use strict";

/** The state of a run that is training: progress, time left, speed, notices. The page follows the run by events. */
(() => {
  const { data, make, main } = page;
  const { runs, section, update } = report;
  if (!data.live) return;
  const connection = make("p", { class: "connection", role: "status" });
  let waiting = null; // the parts that have changed while the page was not visible

  const number = (value) => value.toLocaleString("en");

  /** A duration with units: 45 s, 2 min 5 s, 3 h 20 min. */
  function duration(seconds) {
    const total = Math.round(seconds);
    if (total < 60) return `${total} s`;
    if (total < 3600) return `${Math.floor(total / 60)} min ${total % 60} s`;
    return `${Math.floor(total / 3600)} h ${Math.floor((total % 3600) / 60)} min`;
  }

  function progress(status) {
    if (!status) return [make("p", { class: "now" }, "Before the first step: the untrained model is evaluated.")];
    const percent = Math.round(100 * status.progress);
    const bar = make("span", { class: "bar first" });
    bar.style.inlineSize = `${percent}%`;
    const left = status.progress >= 1 ? "the last evaluation is running" : `${duration(status.seconds_left)} left`;
    return [
      make("p", { class: "now" }, make("strong", { class: "number" }, `${percent}%`), ` ${left}`),
      make("div", { class: "track", role: "progressbar", "aria-label": "progress", "aria-valuemin": 0,
        "aria-valuemax": 100, "aria-valuenow": percent }, bar),
    ];
  }

  function figures({ status, tokensPerSecond }) {
    if (!status) return "";
    const of = status.total_steps === null ? "" : ` of ${number(status.total_steps)}`;
    const rows = [
      ["Step", `${number(status.step)}${of}`],
      ["Time so far", duration(status.seconds)],
      ["Loss of this step",
        status.loss === null ? "NaN, infinite, or no token scored" : `${status.loss.toFixed(3)} nats per token`],
      ["Learning rate", status.learning_rate.toPrecision(3)],
      ["Speed", tokensPerSecond === null ? "–" : `${number(tokensPerSecond)} tokens per second`],
    ];
    return make("dl", { class: "figures number" }, ...rows.map(([name, value]) => (
      make("div", {}, make("dt", {}, name), make("dd", {}, value)))));
  }

  const notices = (texts) => (texts.length
    ? make("ul", { class: "notices", "aria-label": "notices" },
      ...texts.toReversed().map((text) => make("li", { dir: "auto" }, text)))
    : "");

  section({
    title: "Training now", hasHeading: false, uses: ["live"],
    build: () => (runs[0].live === null ? null : [make("div", { class: "panel live" },
      ...progress(runs[0].live.status), figures(runs[0].live), notices(runs[0].live.notices), connection)]),
  });
  main.prepend(main.lastElementChild);

  /** Shows what has changed; while the page is not visible, later. */
  function show(parts) {
    waiting = { ...waiting, ...parts };
    if (document.hidden) return;
    update(waiting);
    waiting = null;
  }
  document.addEventListener("visibilitychange", () => {
    if (waiting) show({});
  });

  const source = new EventSource(data.live.events);
  source.addEventListener("open", () => connection.replaceChildren());
  source.addEventListener("message", (event) => {
    const { run, parts, isFinal } = JSON.parse(event.data);
    if (run !== data.live.run) { // another run has begun at this address
      source.close();
      location.reload();
      return;
    }
    if (isFinal) source.close();
    show(parts);
  });
  source.addEventListener("error", () => {
    connection.replaceChildren("The run does not answer. If it has ended, report.html in its folder is its report.");
  });
})();
