"use strict";

/** The attention maps: a small one of every head, and a large one of the selected head. */
inspection.addView((parts) => {
  const { make, color, paint, legend, rovingTabIndex } = page;
  const { data, tokens, count, selection, weight, onSelect, section, select, quoted } = parts;
  const shade = Math.sqrt; // spreads the small weights; the legend is labeled accordingly
  const [LARGEST_SIDE, LABELED_MARGIN, PLAIN_MARGIN, LEAST_LABELED] = [640, 92, 4, 7]; // pixels
  let cellSize, hasLabels, margin, side; // of the large map
  let cursor = { row: selection.token, column: 0 };
  for (let column = 1; column < cursor.row - 1; column++) { // where the head looks: see opening.py
    const place = [selection.layer, selection.head, cursor.row];
    if (cursor.column === 0 || weight(...place, column) > weight(...place, cursor.column)) cursor.column = column;
  }

  /** Draws the map of a head, one pixel for each weight. */
  function drawMap(layer, head) {
    const canvas = make("canvas", { width: count, height: count });
    const context = canvas.getContext("2d");
    const image = context.createImageData(count, count);
    for (let row = 0; row < count; row++) {
      for (let column = 0; column <= row; column++) {
        const rgb = color(shade(weight(layer, head, row, column)));
        image.data.set([...rgb, 255], 4 * (row * count + column));
      }
    }
    context.putImageData(image, 0, 0);
    return canvas;
  }

  const numbers = (length) => Array.from({ length }, (_, number) => make("span", { class: "muted" }, `${number}`));
  const maps = [];
  const overview = make("div", { class: "overview", role: "group", "aria-label": "all heads" });
  overview.style.gridTemplateColumns = `1.5rem repeat(${data.heads}, minmax(20px, 46px))`;
  const buttons = [];
  overview.append(make("span"), ...numbers(data.heads));
  for (let layer = 0; layer < data.layers; layer++) {
    const row = Array.from({ length: data.heads }, (_, head) => {
      maps.push(drawMap(layer, head));
      const name = `layer ${layer}, head ${head}`;
      const selectHead = () => select({ layer, head });
      return make("button",
        { type: "button", class: "map", "aria-label": name, title: name, focus: selectHead, click: selectHead },
        maps.at(-1));
    });
    overview.append(numbers(data.layers)[layer], ...row);
    buttons.push(...row);
  }
  const setStop = rovingTabIndex(buttons, data.heads);

  const large = make("canvas", {
    class: "large", tabindex: 0, role: "application", "aria-describedby": "weight",
    pointermove: (event) => pointAt(event), click: () => select({ token: cursor.row }),
    keydown: (event) => {
      const { row, column } = cursor;
      const next = {
        ArrowUp: [row - 1, column], ArrowDown: [row + 1, column], ArrowLeft: [row, column - 1],
        ArrowRight: [row, column + 1], Home: [row, 0], End: [row, row],
      }[event.key];
      if (!next) return;
      event.preventDefault();
      const nextRow = Math.min(count - 1, Math.max(0, next[0]));
      cursor = { row: nextRow, column: Math.min(nextRow, Math.max(0, next[1])) };
      select({ token: nextRow });
      draw();
    },
  });
  const holder = make("div", { class: "scroll" }, large);
  const readout = make("p", { class: "readout", id: "weight", "aria-live": "polite" });
  const strip = make("div", { class: "text strip", "aria-hidden": "true", dir: "auto" });
  const spans = tokens.map((token) => make("span", { class: "token" }, token.replaceAll("␣", " ")));
  spans.forEach((span, index) => strip.append(span, tokens[index].includes("↵") ? make("br") : ""));
  const title = make("h3");
  section("Attention",
    "Each row is a token, each column a token that it attends to; the weights of a row sum to 1. Select a head, and a "
    + "cell in its map, with the mouse or the arrow keys. Below the map: the text, colored by the row's weights.",
    legend("attention weight", "0", "0.06", "0.25", "0.56", "1"),
    make("div", { class: "columns" },
      make("div", {}, make("h3", {}, "layers (down) and heads (across)"), overview),
      make("div", { class: "head-map" }, title, readout, holder, strip)));

  /** Chooses the size of the cells: the labels are omitted where there is no room for them. */
  function fit() {
    const size = (room) => Math.max(2, Math.min(32, Math.floor(Math.min(LARGEST_SIDE, room) / count)));
    const room = holder.clientWidth || Infinity;
    hasLabels = size(room - LABELED_MARGIN - 2) >= LEAST_LABELED;
    margin = hasLabels ? LABELED_MARGIN : PLAIN_MARGIN;
    cellSize = size(room - margin - 2);
    side = count * cellSize;
  }

  /** Moves the cursor to the cell under the pointer. */
  function pointAt(event) {
    const box = large.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - margin) / cellSize);
    const row = Math.floor((event.clientY - box.top - margin) / cellSize);
    if (row < 0 || row >= count || column < 0 || column > row) return;
    cursor = { row, column };
    draw();
  }

  function draw() {
    const { layer, head } = selection;
    const { row, column } = cursor;
    const ratio = globalThis.devicePixelRatio || 1;
    large.width = large.height = (margin + side + 2) * ratio;
    large.style.inlineSize = large.style.blockSize = `${margin + side + 2}px`;
    large.setAttribute("aria-label", `map of layer ${layer}, head ${head}; arrow keys move from cell to cell`);
    const context = large.getContext("2d");
    const textColor = getComputedStyle(large).color;
    context.scale(ratio, ratio);
    context.imageSmoothingEnabled = false;
    context.drawImage(maps[layer * data.heads + head], margin, margin, side, side);
    for (const [width, style] of [[4, "#000"], [2, "#fff"]]) { // visible on every color
      context.strokeStyle = style;
      context.lineWidth = width;
      context.strokeRect(margin + column * cellSize - 1, margin + row * cellSize - 1, cellSize + 2, cellSize + 2);
    }
    if (hasLabels) drawLabels(context, textColor);
    title.textContent = `layer ${layer}, head ${head}`;
    readout.replaceChildren(
      quoted(row), ` (${row}) attends to `, quoted(column), ` (${column}) with weight `,
      make("strong", { class: "number" }, weight(layer, head, row, column).toFixed(4)));
    spans.forEach((span, index) => {
      span.toggleAttribute("data-selected", index === row);
      span.classList.toggle("later", index > row);
      if (index <= row) paint(span, shade(weight(layer, head, row, index)));
      else span.style.backgroundColor = span.style.color = "";
    });
  }

  /** Writes the tokens to the left of the rows and above the columns. */
  function drawLabels(context, textColor) {
    context.font = `${Math.min(13, cellSize)}px ui-monospace, monospace`;
    context.fillStyle = textColor;
    context.textBaseline = "middle";
    tokens.forEach((token, index) => {
      const label = token.length > 12 ? `${token.slice(0, 11)}…` : token;
      const center = margin + (index + 0.5) * cellSize;
      context.globalAlpha = index === cursor.row ? 1 : 0.62;
      context.textAlign = "right";
      context.fillText(label, margin - 6, center, margin - 10);
      context.globalAlpha = index === cursor.column ? 1 : 0.62;
      context.save();
      context.translate(center, margin - 6);
      context.rotate(-Math.PI / 2);
      context.textAlign = "left";
      context.fillText(label, 0, 0, margin - 10);
      context.restore();
    });
    context.globalAlpha = 1;
  }

  document.addEventListener("theme", function redraw() {
    if (large.isConnected) draw();
    else document.removeEventListener("theme", redraw); // another inspection is shown in its place
  });
  fit();
  new ResizeObserver(() => {
    const before = cellSize;
    fit();
    if (cellSize !== before) draw();
  }).observe(holder);
  onSelect(({ token, layer, head }) => {
    const index = layer * data.heads + head;
    buttons.forEach((button, other) => button.toggleAttribute("data-selected", other === index));
    setStop(index);
    if (token !== cursor.row) cursor = { row: token, column: Math.min(cursor.column, token) };
    draw();
  });
});
