"use strict";

/** How long the vectors are: what each layer adds to the stream, and the embeddings it begins with. */
(() => {
  const { make, section } = page;
  const { data, tokens, count, watch, quoted } = inspection;
  const { attention, mlp, residual, token: words, position: positions } = data.norms;
  const median = (values) => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)];
  const [width, height, left, right, top, bottom] = [620, 260, 44, 84, 10, 26];
  const SERIES = ["first", "second", "third"];

  /** A chart of lines over 0, 1, 2, …; a logarithmic height where the values are far apart. */
  function chart(label, lines, across, names) {
    const values = lines.flatMap(({ points }) => points).filter((value) => value > 0);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const log = high > 30 * low;
    const scaled = (value) => (log ? Math.log(Math.max(value, low)) : value);
    const [from, to] = log ? [Math.log(low), Math.log(high)] : [0, high];
    const x = (at) => left + (at * (width - left - right)) / Math.max(1, across - 1);
    const y = (value) => height - bottom - ((scaled(value) - from) * (height - top - bottom)) / (to - from || 1);
    const svg = make("svg:svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
    for (const share of [0, 0.25, 0.5, 0.75, 1]) {
      const value = log ? Math.exp(from + share * (to - from)) : from + share * (to - from);
      svg.append(make("svg:line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
        make("svg:text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, value.toPrecision(value < 10 ? 2 : 3)));
    }
    const every = Math.ceil(across / 16);
    for (let at = 0; at < across; at += every) {
      svg.append(make("svg:text", { x: x(at), y: height - 8, "text-anchor": "middle" }, `${at}`));
    }
    const ends = [];
    for (const { name, points, kind, quiet } of lines) {
      const path = points.map((value, at) => `${x(at)},${y(value)}`).join(" ");
      svg.append(make("svg:polyline", { class: `line ${kind}${quiet ? " median" : ""}`, points: path }));
      if (quiet) continue;
      points.forEach((value, at) => svg.append(make("svg:circle", { class: kind, cx: x(at), cy: y(value), r: 3 },
        make("svg:title", {}, `${name}, ${names(at)}: ${value.toFixed(2)}`))));
      ends.push({ name, kind, y: y(points.at(-1)) });
    }
    ends.sort((a, b) => a.y - b.y);
    ends.forEach((end, at) => {
      if (at > 0) end.y = Math.max(end.y, ends[at - 1].y + 15);
      svg.append(make("svg:text", { class: `name ${end.kind}`, x: width - right + 8, y: end.y + 4 }, end.name));
    });
    return svg;
  }

  /** One number in every layer for one token. */
  const through = (table, token) => table.map((layer) => layer[token]);
  const kinds = [["stream", residual], ["attention", attention], ["MLP", mlp]];
  const layers = make("div", { class: "chart" });
  const embeddings = make("div", { class: "chart" });
  section("Norms",
    "The lengths of the vectors: the stream behind each layer, and what the layer's attention and MLP added to it. "
    + "Faint, dashed: the median of all tokens.",
    make("div", { class: "columns" }, layers, embeddings));
  embeddings.append(make("h3", {}, "embeddings, token by token"), chart("lengths of the embeddings, token by token", [
    { name: "token", points: words, kind: SERIES[0] }, { name: "position", points: positions, kind: SERIES[1] },
  ], count, (at) => `token ${at} ${tokens[at]}`));

  watch(({ token }) => {
    const lines = kinds.flatMap(([name, table], at) => [
      { name: `median ${name}`, points: table.map(median), kind: SERIES[at], quiet: true },
      { name, points: through(table, token), kind: SERIES[at] },
    ]);
    const rows = residual.map((_, layer) => make("tr", {}, make("th", { scope: "row" }, `layer ${layer}`),
      ...kinds.map(([, table]) => make("td", {}, table[layer][token].toFixed(2)))));
    layers.replaceChildren(make("h3", {}, "layers, at token ", `${token} `, quoted(token)),
      chart(`lengths in every layer at token ${token}`, lines, data.layers, (at) => `layer ${at}`),
      make("details", {}, make("summary", {}, "the numbers"), make("table", { class: "number" },
        make("tr", {}, make("th"), ...kinds.map(([name]) => make("th", { scope: "col" }, name))), ...rows)));
  });
})();
