"use strict";

/** The norms of the vectors: the residual stream, what each layer adds to it, and the embeddings. */
inspection.addView((parts) => {
  const { make } = page;
  const { data, tokens, count, onSelect, section, quoted } = parts;
  const { attention, mlp, residual, token: tokenNorms, position: positionNorms } = data.norms;
  const median = (values) => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)];
  const [height, left, right, top, bottom] = [260, 44, 84, 10, 26];
  const SERIES = ["first", "second", "third"];

  /** A chart of lines over 0, 1, 2, …, as wide as its place. */
  function lineChart(...content) {
    const holder = make("div", { class: "plot" });
    new ResizeObserver(() => {
      if (holder.clientWidth) holder.replaceChildren(draw(holder.clientWidth, ...content));
    }).observe(holder);
    return holder;
  }

  /** Draws the lines, with a logarithmic axis if the values differ by a factor of 30 or more. */
  function draw(width, label, lines, length, nameOf) {
    const values = lines.flatMap(({ points }) => points).filter((value) => value > 0);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const isLog = high > 30 * low;
    const scaled = (value) => (isLog ? Math.log(Math.max(value, low)) : value);
    const [from, to] = isLog ? [Math.log(low), Math.log(high)] : [0, high];
    const x = (index) => left + (index * (width - left - right)) / Math.max(1, length - 1);
    const y = (value) => height - bottom - ((scaled(value) - from) * (height - top - bottom)) / (to - from || 1);
    const svg = make("svg:svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
    for (const share of [0, 0.25, 0.5, 0.75, 1]) {
      const value = isLog ? Math.exp(from + share * (to - from)) : from + share * (to - from);
      svg.append(make("svg:line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
        make("svg:text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" },
          value.toPrecision(value < 10 ? 2 : 3)));
    }
    const stride = Math.ceil((length * 28) / (width - left - right)); // pixels for a number
    for (let index = 0; index < length; index += stride) {
      svg.append(make("svg:text", { x: x(index), y: height - 8, "text-anchor": "middle" }, `${index}`));
    }
    const names = [];
    for (const { name, points, series, isMedian } of lines) {
      const path = points.map((value, index) => `${x(index)},${y(value)}`).join(" ");
      svg.append(make("svg:polyline", { class: `line ${series}${isMedian ? " median" : ""}`, points: path }));
      if (isMedian) continue;
      points.forEach((value, index) => svg.append(
        make("svg:circle", { class: series, cx: x(index), cy: y(value), r: 3 },
          make("svg:title", {}, `${name}, ${nameOf(index)}: ${value.toFixed(2)}`))));
      names.push({ name, series, y: y(points.at(-1)) });
    }
    names.sort((a, b) => a.y - b.y);
    names.forEach((each, index) => {
      if (index > 0) each.y = Math.max(each.y, names[index - 1].y + 15); // so that no two names overlap
      svg.append(make("svg:text", { class: `name ${each.series}`, x: width - right + 8, y: each.y + 4 }, each.name));
    });
    return svg;
  }

  const kinds = [["residual", residual], ["attention", attention], ["MLP", mlp]];
  const layers = make("div", { class: "chart" });
  const embeddings = make("div", { class: "chart" });
  section("Norms",
    "The length of the residual stream after each layer, and of what the layer's attention and MLP add to it. "
    + "Dashed lines: the median over all tokens.",
    make("div", { class: "columns" }, layers, embeddings));
  embeddings.append(make("h3", {}, "embeddings, token by token"), lineChart("norms of the embeddings, token by token", [
    { name: "token", points: tokenNorms, series: SERIES[0] },
    { name: "position", points: positionNorms, series: SERIES[1] },
  ], count, (index) => `token ${index} ${tokens[index]}`));

  onSelect(({ token }) => {
    const lines = kinds.flatMap(([name, table], index) => [
      { name: `median ${name}`, points: table.map(median), series: SERIES[index], isMedian: true },
      { name, points: table.map((layer) => layer[token]), series: SERIES[index] },
    ]);
    const rows = residual.map((_, layer) => make("tr", {}, make("th", { scope: "row" }, `layer ${layer}`),
      ...kinds.map(([, table]) => make("td", {}, table[layer][token].toFixed(2)))));
    layers.replaceChildren(make("h3", {}, "layers, at token ", `${token} `, quoted(token)),
      lineChart(`norms in every layer at token ${token}`, lines, data.layers, (layer) => `layer ${layer}`),
      make("details", {}, make("summary", {}, "as a table"), make("table", { class: "number" },
        make("tr", {}, make("th"), ...kinds.map(([name]) => make("th", { scope: "col" }, name))), ...rows)));
  });
});
