"use strict";

/** What every page has: its data, a way to make elements, a scale of colours, arrow keys, and light and dark. */
const page = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const main = document.createElement("main");
  const stops = data.scale.map((hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)));

  /** An element with attributes and children; a function among the attributes listens to the event of that name. */
  function make(name, attributes = {}, ...children) {
    const [kind, space] = name.startsWith("svg:") ? [name.slice(4), "2000/svg"] : [name, "1999/xhtml"];
    const element = document.createElementNS(`http://www.w3.org/${space}`, kind);
    for (const [key, value] of Object.entries(attributes)) {
      if (typeof value === "function") element.addEventListener(key, value);
      else if (value !== null && value !== undefined) element.setAttribute(key, value);
    }
    element.append(...children);
    return element;
  }

  /** A part of the page under a heading. */
  function section(title, explanation, ...children) {
    const heading = make("h2", {}, title);
    main.append(make("section", { "aria-label": title }, heading, make("p", { class: "quiet" }, explanation), ...children));
  }

  /** Red, green and blue at a place of the scale, from 0 (dark) to 1 (bright). */
  function colour(share) {
    const at = Math.min(1, Math.max(0, share)) * (stops.length - 1);
    const low = Math.min(Math.floor(at), stops.length - 2);
    return stops[low].map((value, part) => Math.round(value + (at - low) * (stops[low + 1][part] - value)));
  }

  /** Lays an element on a colour of the scale, its text in black or white. */
  function paint(element, share) {
    const [red, green, blue] = colour(share);
    element.style.backgroundColor = `rgb(${red} ${green} ${blue})`;
    element.style.color = 0.299 * red + 0.587 * green + 0.114 * blue > 120 ? "#000" : "#fff";
  }

  /** The scale with words under it. */
  function legend(label, ...words) {
    const canvas = make("canvas", { width: 256, height: 1, "aria-hidden": "true" });
    const context = canvas.getContext("2d");
    for (let at = 0; at < 256; at++) {
      context.fillStyle = `rgb(${colour(at / 255).join(" ")})`;
      context.fillRect(at, 0, 1, 1);
    }
    const ticks = make("span", {}, ...words.map((word) => make("span", {}, word)));
    return make("div", { class: "scale", role: "img", "aria-label": `${label}: ${words.join(", ")}` }, canvas, ticks);
  }

  /** Where an arrow key, Home or End leads from a cell of a grid, or null where it leads nowhere. */
  function moved(key, at, columns, count) {
    const row = at - (at % columns);
    const last = Math.min(row + columns, count) - 1;
    const to = {
      ArrowLeft: Math.max(at - 1, row), ArrowRight: Math.min(at + 1, last), Home: row, End: last,
      ArrowUp: at - columns, ArrowDown: at + columns,
    }[key];
    return to === undefined || to < 0 || to >= count ? null : to;
  }

  /** Makes elements one stop of the Tab key, in which arrow keys move; returns what chooses the stop from outside. */
  function rove(elements, columns) {
    let current = 0;
    function stop(at) {
      elements[current].tabIndex = -1;
      elements[at].tabIndex = 0;
      current = at;
    }
    elements.forEach((element, at) => {
      element.tabIndex = at === 0 ? 0 : -1;
      element.addEventListener("keydown", (event) => {
        const to = moved(event.key, at, columns, elements.length);
        if (to === null) return;
        event.preventDefault();
        elements[to].focus();
      });
    });
    return stop;
  }

  /** The page's title, some facts, and the switch between light and dark, which tells those who draw. */
  function begin(title, ...facts) {
    const dark = () => (document.documentElement.style.colorScheme
      ? document.documentElement.style.colorScheme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches);
    const button = make("button", { type: "button", id: "theme", click: () => {
      document.documentElement.style.colorScheme = dark() ? "light" : "dark";
      tell();
    } });
    function tell() {
      button.textContent = dark() ? "light" : "dark";
      button.setAttribute("aria-label", `switch to ${button.textContent} colours`);
      document.dispatchEvent(new Event("theme"));
    }
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", tell);
    tell();
    const words = facts.map((fact) => make("span", { class: "quiet" }, fact));
    document.body.append(make("header", {}, make("h1", { dir: "auto" }, title), ...words, button), main);
  }

  /** A probability in per cent, from its logarithm. */
  function percent(logprob) {
    const share = 100 * Math.exp(logprob);
    if (share < 0.01) return "< 0.01 %";
    return `${share >= 9.95 ? share.toFixed(0) : share >= 0.95 ? share.toFixed(1) : share.toFixed(2)} %`;
  }

  return { data, make, section, colour, paint, legend, rove, begin, percent };
})();
