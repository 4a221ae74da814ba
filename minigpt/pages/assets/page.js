"use strict";

/**
 * The parts of every page: its data, elements, colors, arrow keys, light and dark mode.
 * Colors mean the same everywhere: a strong orange an unlikely token (`tint`), a bright yellow a large weight (`paint`).
 */
const page = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const main = document.createElement("main");
  const scaleColors = data.scale.map((hex) => [0, 2, 4].map((digit) => parseInt(hex.slice(digit, digit + 2), 16)));

  /** Makes an element with attributes and children; an attribute that is a function listens to that event. */
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

  /** Appends a section to a place: a heading, an explanation and its content. */
  function section(place, title, explanation, ...children) {
    const heading = make("h2", {}, title);
    const text = make("p", { class: "muted" }, explanation);
    place.append(make("section", { "aria-label": title }, heading, text, ...children));
  }

  /** The color of a weight at a position on its scale from 0 (dark) to 1 (bright): red, green and blue. */
  function color(position) {
    const place = Math.min(1, Math.max(0, position)) * (scaleColors.length - 1);
    const low = Math.min(Math.floor(place), scaleColors.length - 2);
    return scaleColors[low].map((value, part) => (
      Math.round(value + (place - low) * (scaleColors[low + 1][part] - value))));
  }

  /** Gives an element a background color of the scale, and black or white text, whichever is readable on it. */
  function paint(element, position) {
    const [red, green, blue] = color(position);
    element.style.backgroundColor = `rgb(${red} ${green} ${blue})`;
    element.style.color = 0.299 * red + 0.587 * green + 0.114 * blue > 120 ? "#000" : "#fff";
  }

  /** The color scale with evenly spaced labels. */
  function legend(title, ...labels) {
    const canvas = make("canvas", { width: 256, height: 1, "aria-hidden": "true" });
    const context = canvas.getContext("2d");
    for (let x = 0; x < 256; x++) {
      context.fillStyle = `rgb(${color(x / 255).join(" ")})`;
      context.fillRect(x, 0, 1, 1);
    }
    const ticks = make("span", {}, ...labels.map((label) => make("span", {}, label)));
    return make("div", { class: "scale", role: "img", "aria-label": `${title}: ${labels.join(", ")}` }, canvas, ticks);
  }

  /** Gives an element the background of a token's log-probability: the stronger, the less likely. */
  function tint(element, logprob) {
    const bits = Math.min(data.mostBits, Math.max(0, -logprob / Math.LN2));
    const share = `calc(${(bits / data.mostBits).toFixed(2)} * var(--strongest))`;
    element.style.backgroundColor = `color-mix(in srgb, var(--unlikely) ${share}, transparent)`;
  }

  /** The scale of these colors, from likely to unlikely, with evenly spaced labels; by default probabilities. */
  function likelihoodLegend(title = "probability", labels = ["100%", "18%", "3%", "0.6%", "≤0.1%"]) {
    const ticks = make("span", {}, ...labels.map((label) => make("span", {}, label)));
    return make("div", { class: "scale likelihood", role: "img",
      "aria-label": `${title}, the stronger the color the less likely: ${labels.join(", ")}` },
      make("span", { "aria-hidden": "true" }, make("span", {}, "likely"), make("span", {}, "unlikely")),
      make("span", { class: "bar", "aria-hidden": "true" }), ticks);
  }

  /** The cell of a grid that an arrow key, Home or End leads to, or null. */
  function nextCell(key, index, columns, count) {
    const rowStart = index - (index % columns);
    const rowEnd = Math.min(rowStart + columns, count) - 1;
    const next = {
      ArrowLeft: Math.max(index - 1, rowStart), ArrowRight: Math.min(index + 1, rowEnd), Home: rowStart, End: rowEnd,
      ArrowUp: index - columns, ArrowDown: index + columns,
    }[key];
    return next === undefined || next < 0 || next >= count ? null : next;
  }

  /**
   * Makes the elements of a grid a single stop of the Tab key, in which arrow keys move (a roving tabindex).
   * Returns a function that sets the element with the stop.
   */
  function rovingTabIndex(elements, columns) {
    let current = 0;
    function setStop(index) {
      elements[current].tabIndex = -1;
      elements[index].tabIndex = 0;
      current = index;
    }
    elements.forEach((element, index) => {
      element.tabIndex = index === 0 ? 0 : -1;
      element.addEventListener("keydown", (event) => {
        const next = nextCell(event.key, index, columns, elements.length);
        if (next === null) return;
        event.preventDefault();
        elements[next].focus();
      });
    });
    return setStop;
  }

  /** Starts the page: its title, some facts, and the switch between light and dark, which fires a "theme" event. */
  function start(title, ...facts) {
    const isDark = () => (document.documentElement.style.colorScheme
      ? document.documentElement.style.colorScheme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches);
    const button = make("button", { type: "button", id: "theme", click: () => {
      document.documentElement.style.colorScheme = isDark() ? "light" : "dark";
      update();
    } });
    function update() {
      const other = isDark() ? "light" : "dark";
      button.textContent = `${other} mode`;
      button.setAttribute("aria-label", `switch to ${other} mode`);
      document.dispatchEvent(new Event("theme"));
    }
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", update);
    update();
    const spans = facts.map((fact) => make("span", { class: "muted" }, fact));
    document.body.append(make("header", {}, make("h1", { dir: "auto" }, title), ...spans, button), main);
  }

  /** A probability in percent, from its logarithm. */
  function percent(logprob) {
    const share = 100 * Math.exp(logprob);
    if (share < 0.01) return "<0.01%";
    return `${share >= 9.95 ? share.toFixed(0) : share >= 0.95 ? share.toFixed(1) : share.toFixed(2)}%`;
  }

  return {
    data, main, make, section, color, paint, legend, tint, likelihoodLegend, rovingTabIndex, start, percent,
  };
})();
