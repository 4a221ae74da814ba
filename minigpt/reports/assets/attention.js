"use strict";

/** Where the heads look: all of them small, and one large, with a cell under the pointer or the arrow keys. */
(() => {
  const { make, section, colour, paint, legend, rove } = page;
  const { data, tokens, count, chosen, weight, watch, choose, quoted } = inspection;
  const shade = Math.sqrt; // most weights are small; the legend says so
  const cell = Math.max(2, Math.min(32, Math.floor(640 / count)));
  const labelled = cell >= 7;
  const margin = labelled ? 92 : 4;
  const side = count * cell;
  let cursor = { row: count - 1, column: 0 };

  /** The map of a head, a pixel for each weight. */
  function drawn(layer, head) {
    const canvas = make("canvas", { width: count, height: count });
    const context = canvas.getContext("2d");
    const image = context.createImageData(count, count);
    for (let row = 0; row < count; row++) {
      for (let column = 0; column <= row; column++) {
        const rgb = colour(shade(weight(layer, head, row, column)));
        image.data.set([...rgb, 255], 4 * (row * count + column));
      }
    }
    context.putImageData(image, 0, 0);
    return canvas;
  }

  const numbers = (length) => Array.from({ length }, (_, at) => make("span", { class: "quiet" }, `${at}`));
  const maps = [];
  const overview = make("div", { class: "overview", role: "group", "aria-label": "all heads" });
  overview.style.gridTemplateColumns = `1.5rem repeat(${data.heads}, minmax(20px, 46px))`;
  const buttons = [];
  overview.append(make("span"), ...numbers(data.heads));
  for (let layer = 0; layer < data.layers; layer++) {
    const row = Array.from({ length: data.heads }, (_, head) => {
      maps.push(drawn(layer, head));
      const name = `layer ${layer}, head ${head}`;
      const choice = () => choose({ layer, head });
      return make("button", { type: "button", class: "map", "aria-label": name, title: name, focus: choice, click: choice },
        maps.at(-1));
    });
    overview.append(numbers(data.layers)[layer], ...row);
    buttons.push(...row);
  }
  const stop = rove(buttons, data.heads);

  const large = make("canvas", {
    class: "large", tabindex: 0, role: "application", "aria-describedby": "weight",
    pointermove: (event) => point(event), click: () => choose({ token: cursor.row }),
    keydown: (event) => {
      const { row, column } = cursor;
      const to = {
        ArrowUp: [row - 1, column], ArrowDown: [row + 1, column], ArrowLeft: [row, column - 1],
        ArrowRight: [row, column + 1], Home: [row, 0], End: [row, row],
      }[event.key];
      if (!to) return;
      event.preventDefault();
      const next = Math.min(count - 1, Math.max(0, to[0]));
      cursor = { row: next, column: Math.min(next, Math.max(0, to[1])) };
      choose({ token: next });
      draw();
    },
  });
  const readout = make("p", { class: "readout", id: "weight", "aria-live": "polite" });
  const strip = make("div", { class: "text strip", "aria-hidden": "true", dir: "auto" });
  const spans = tokens.map((token) => make("span", { class: "token" }, token.replaceAll("␣", " ")));
  spans.forEach((span, at) => strip.append(span, tokens[at].includes("↵") ? make("br") : ""));
  const title = make("h3");
  section("Attention",
    "A row is a token, a column what it takes from; each row adds up to one. Choose a head with the arrow keys or the "
    + "mouse, a cell in its map likewise. Below the map: the text, coloured by what the row's token takes from each.",
    legend("attention weight", "0", "0.06", "0.25", "0.56", "1"),
    make("div", { class: "columns" },
      make("div", {}, make("h3", {}, "layers (down) and heads (across)"), overview),
      make("div", { class: "one" }, title, readout, make("div", { class: "scroll" }, large), strip)));

  /** Moves the cursor under the pointer. */
  function point(event) {
    const box = large.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - margin) / cell);
    const row = Math.floor((event.clientY - box.top - margin) / cell);
    if (row < 0 || row >= count || column < 0 || column > row) return;
    cursor = { row, column };
    draw();
  }

  function draw() {
    const { layer, head } = chosen;
    const { row, column } = cursor;
    const ratio = globalThis.devicePixelRatio || 1;
    large.width = large.height = (margin + side + 2) * ratio;
    large.style.inlineSize = large.style.blockSize = `${margin + side + 2}px`;
    large.setAttribute("aria-label", `map of layer ${layer}, head ${head}; arrow keys move from cell to cell`);
    const context = large.getContext("2d");
    const ink = getComputedStyle(large).color;
    context.scale(ratio, ratio);
    context.imageSmoothingEnabled = false;
    context.drawImage(maps[layer * data.heads + head], margin, margin, side, side);
    for (const [width, style] of [[4, "#000"], [2, "#fff"]]) { // to be seen on every colour
      context.strokeStyle = style;
      context.lineWidth = width;
      context.strokeRect(margin + column * cell - 1, margin + row * cell - 1, cell + 2, cell + 2);
    }
    if (labelled) label(context, ink);
    title.textContent = `layer ${layer}, head ${head}`;
    readout.replaceChildren(
      quoted(row), ` (${row}) takes `, make("strong", { class: "number" }, weight(layer, head, row, column).toFixed(4)),
      " from ", quoted(column), ` (${column})`);
    spans.forEach((span, at) => {
      span.toggleAttribute("data-chosen", at === row);
      span.classList.toggle("later", at > row);
      if (at <= row) paint(span, shade(weight(layer, head, row, at)));
      else span.style.backgroundColor = span.style.color = "";
    });
  }

  /** Writes the tokens beside the rows and above the columns. */
  function label(context, ink) {
    context.font = `${Math.min(13, cell)}px ui-monospace, monospace`;
    context.fillStyle = ink;
    context.textBaseline = "middle";
    for (let at = 0; at < count; at++) {
      const word = tokens[at].length > 12 ? `${tokens[at].slice(0, 11)}…` : tokens[at];
      context.globalAlpha = at === cursor.row ? 1 : 0.62;
      context.textAlign = "right";
      context.fillText(word, margin - 6, margin + (at + 0.5) * cell, margin - 10);
      context.globalAlpha = at === cursor.column ? 1 : 0.62;
      context.save();
      context.translate(margin + (at + 0.5) * cell, margin - 6);
      context.rotate(-Math.PI / 2);
      context.textAlign = "left";
      context.fillText(word, 0, 0, margin - 10);
      context.restore();
    }
    context.globalAlpha = 1;
  }

  document.addEventListener("theme", draw);
  watch(({ token, layer, head }) => {
    const at = layer * data.heads + head;
    buttons.forEach((button, place) => button.toggleAttribute("data-chosen", place === at));
    stop(at);
    if (token !== cursor.row) cursor = { row: token, column: Math.min(cursor.column, token) };
    draw();
  });
})();
