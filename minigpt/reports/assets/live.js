"use strict";

/** The state of a run that is training: progress, time left, speed, notices. The page reloads itself. */
(() => {
  const { data, make, main } = page;
  const { section } = report;
  const connection = make("p", { class: "connection", role: "status" });

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

  function figures(status) {
    if (!status) return "";
    const of = status.total_steps === null ? "" : ` of ${number(status.total_steps)}`;
    const rows = [
      ["Step", `${number(status.step)}${of}`],
      ["Time so far", duration(status.seconds)],
      ["Loss of this step",
        status.loss === null ? "NaN, infinite, or no token scored" : `${report.shownLoss(status.loss)} nats per token`],
      ["Learning rate", status.learning_rate.toPrecision(3)],
      ["Speed", `${number(Math.round(status.tokens_per_second))} tokens per second`],
    ];
    return make("dl", { class: "figures number" }, ...rows.map(([name, value]) => (
      make("div", {}, make("dt", {}, name), make("dd", {}, value)))));
  }

  const notices = (texts) => (texts.length
    ? make("ul", { class: "notices", "aria-label": "notices" },
      ...texts.toReversed().map((text) => make("li", { dir: "auto" }, text)))
    : "");

  section({
    title: "Training now", hasHeading: false,
    build: () => [make("div", { class: "panel live" },
      ...progress(data.live.status), figures(data.live.status), notices(data.live.notices), connection)],
  });
  main.prepend(main.lastElementChild);

  // The run writes the next page after about as long as it took until this one.
  const { written, interval } = data.live;
  const now = Date.now() / 1000;
  const late = now - written - 3 * (interval ?? 0);
  if (late > 60) {
    connection.append(`The run has written nothing for ${duration(now - written)}. If it has stopped, `
      + "minigpt train --resume continues it.");
  }
  const wait = Math.max(written + (interval ?? 0) + 1 - now, Math.min(30, Math.max(2, (interval ?? 0) / 4)));
  setTimeout(function reload() {
    if (document.hidden || document.querySelector("input:active")) setTimeout(reload, 1000); // a slider is in use
    else location.reload();
  }, 1000 * Math.min(wait, 3600));
})();
