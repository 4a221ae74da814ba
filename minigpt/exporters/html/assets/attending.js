"use strict";

/** The attention of one token: a button for every head, with its weights in colors, and the text in those of one. */
const attending = (() => {
  const { make, color, paint, legend, rovingTabIndex } = page;
  const shade = Math.sqrt; // spreads the small weights; the legend is labeled accordingly
  const MOST_CELLS = 48, NAMED = 5; // of the picture on a button; tokens that the sentence names
  let chosen = null; // the head that was selected last, { layer, head }; null for the mean

  /** Draws weights from left to right. Of neighbors that share a cell, the largest is shown. */
  function draw(weights) {
    const cells = Math.min(MOST_CELLS, weights.length);
    const canvas = make("canvas", { width: cells, height: 1, "aria-hidden": "true" });
    const context = canvas.getContext("2d"), each = weights.length / cells;
    for (let cell = 0; cell < cells; cell++) {
      const largest = Math.max(...weights.subarray(Math.floor(cell * each), Math.ceil((cell + 1) * each)));
      context.fillStyle = `rgb(${color(shade(largest)).join(" ")})`;
      context.fillRect(cell, 0, 1, 1);
    }
    return canvas;
  }

  /** The mean of the weights of all heads. */
  function meanOf(heads) {
    return heads[0].map((_, place) => heads.reduce((sum, weights) => sum + weights[place], 0) / heads.length);
  }

  /**
   * An element about the attention of the last of some tokens; `heads` is their number in a layer, `weights` are
   * (layer, head, token), `skipped` is the number of tokens before these that the model did not see.
   */
  function view(tokens, heads, weights, skipped) {
    const count = tokens.length, layers = weights.length / heads / count;
    const names = tokens.map(reading.label);
    const each = Array.from({ length: layers * heads }, (_, at) => weights.subarray(at * count, (at + 1) * count));
    const mean = meanOf(each);
    const quoted = (place) => make("bdi", { class: "quoted" }, `‘${names[place]}’`);
    const title = make("h3"), readout = make("p", { class: "readout", "aria-live": "polite" });
    const spans = names.map((name) => make("span", { class: "token" }, name.replaceAll("␣", " ")));
    const strip = make("div", { class: "text strip", dir: "auto", role: "img", tabindex: 0,
      "aria-label": "the text, colored by attention weight" });
    if (skipped > 0) strip.append(make("span", { class: "skipped" }, `… ${skipped} tokens outside the context … `));
    spans.forEach((span, place) => strip.append(span, names[place].includes("↵") ? make("br") : ""));
    spans.at(-1).toggleAttribute("data-selected", true);

    const overview = make("div", { class: "overview", role: "group", "aria-label": "all heads" });
    overview.style.gridTemplateColumns = `1.5rem repeat(${heads}, minmax(0, 64px))`;
    const number = (value) => make("span", { class: "number", "aria-hidden": "true" }, `${value}`);
    const buttons = each.map((its, at) => {
      const layer = Math.floor(at / heads), head = at % heads, name = `layer ${layer}, head ${head}`;
      return make("button", { type: "button", class: "map", "aria-label": name, title: name, "aria-pressed": "false",
        click: () => select({ layer, head }), focus: () => select({ layer, head }) }, draw(its));
    });
    const all = make("button", { type: "button", class: "mean", click: () => select(null) }, "mean of all heads");
    overview.append(all, make("span"), ...Array.from({ length: heads }, (_, head) => number(head)));
    for (let layer = 0; layer < layers; layer++) {
      overview.append(number(layer), ...buttons.slice(layer * heads, (layer + 1) * heads));
    }
    const setStop = rovingTabIndex(buttons, heads);

    function select(head) {
      chosen = head;
      const at = head === null ? -1 : head.layer * heads + head.head;
      const shown = at < 0 ? mean : each[at];
      [all, ...buttons].forEach((button, other) => {
        button.setAttribute("aria-pressed", String(other === at + 1));
        button.toggleAttribute("data-selected", other === at + 1);
      });
      if (at >= 0) setStop(at);
      title.replaceChildren("Attention of ", quoted(count - 1), at < 0 ? ", mean of all heads" : `, layer ${head.layer}, head ${head.head}`);
      spans.forEach((span, place) => paint(span, shade(shown[place])));
      const order = [...names.keys()].sort((one, other) => shown[other] - shown[one]).slice(0, NAMED);
      readout.replaceChildren(quoted(count - 1), ` (${count - 1}) attends most to `, ...order.flatMap((place, rank) => [
        rank > 0 ? ", " : "", quoted(place), ` (${place}) with weight `,
        make("strong", { class: "number" }, shown[place].toFixed(2)),
      ]), ".");
    }

    const isKnown = chosen !== null && chosen.layer < layers && chosen.head < heads;
    select(isKnown ? chosen : null);
    setTimeout(() => { strip.scrollTop = strip.scrollHeight; }); // to the token itself, once the page has the element
    return make("section", { class: "attending", "aria-label": "attention" }, title,
      make("p", { class: "muted" }, "The weights with which the model, reading this token, attends to it and to the"
        + " tokens before it; the weights of a head sum to 1. Select a head: layers are below one another, the heads"
        + " of a layer beside one another."),
      legend("attention weight", "0", "0.06", "0.25", "0.56", "1"), overview, readout, strip);
  }

  return { view };
})();
