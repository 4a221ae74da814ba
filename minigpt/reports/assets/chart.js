"use strict";

/**
 * An SVG chart of lines over steps, as wide as its place; the mouse or the arrow keys select a step and show the lines'
 * values at it. Names and numbers stand outside of the plot, where no line crosses them.
 */
const chart = (() => {
  const { make } = page;
  const FONT_SIZE = 12, LINE_HEIGHT = 14, TOP = 12, BOTTOM = 40; // pixels
  const ruler = document.createElement("canvas").getContext("2d");
  const selections = new Map(); // the selected step by the title of a chart, for when it is drawn again
  let chartCount = 0;

  /** About `about` round numbers from low to high. */
  function ticks(low, high, about) {
    const rough = (high - low) / about || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough) * power;
    const values = [];
    for (let multiple = Math.ceil(low / step); multiple * step <= high + step * 1e-9; multiple++) {
      values.push(multiple * step);
    }
    return values;
  }

  /** A number as text: 1,200, 0.0032, 4.20e-6. */
  function format(value, digits = 4) {
    if (value === null || value === undefined) return "–";
    if (value !== 0 && Math.abs(value) < 1e-4) return value.toExponential(2);
    if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en");
    return Number(value.toPrecision(digits)).toString();
  }

  /** The index of the number nearest to a value, in a sorted list. */
  function nearest(sorted, value) {
    let low = 0, high = sorted.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (sorted[middle] < value) low = middle; else high = middle;
    }
    return Math.abs(sorted[high] - value) < Math.abs(sorted[low] - value) ? high : low;
  }

  /** The lowest and the highest of all values that are not null, widened to the `wanted` bounds. */
  function extent(lists, wanted) {
    let [low, high] = [Infinity, -Infinity];
    for (const list of lists) {
      for (const value of list) {
        if (value === null) continue;
        low = Math.min(low, value);
        high = Math.max(high, value);
      }
    }
    [low, high] = [Math.min(low, wanted[0] ?? low), Math.max(high, wanted[1] ?? high)];
    if (low > high) return [0, 1];
    return low === high ? [low - 0.5, high + 0.5] : [low, high];
  }

  function widthOf(text) {
    ruler.font = `${FONT_SIZE}px system-ui, sans-serif`;
    return Math.ceil(ruler.measureText(text).width);
  }

  /** The text, shortened to a width in pixels. */
  function shortened(text, width) {
    let kept = text;
    while (kept.length > 1 && widthOf(`${kept}…`) > width) kept = kept.slice(0, -1);
    return widthOf(text) <= width ? text : `${kept}…`;
  }

  /** Places labels at these heights, or where they do not overlap: between `top` and `bottom`, in the given order. */
  function spread(heights, top, bottom) {
    const places = [];
    for (const height of heights) places.push(Math.max(height, (places.at(-1) ?? top - LINE_HEIGHT) + LINE_HEIGHT));
    for (let index = places.length - 1, most = bottom; index >= 0; index--, most -= LINE_HEIGHT) {
      places[index] = Math.min(places[index], most);
    }
    return places;
  }

  /** The ranges of a chart's axes, and the horizontal lines that are near enough to be shown. */
  function rangesOf({ lines, levels, from, to, top }) {
    const [first, last] = extent(lines.map((line) => line.x), []);
    let [low, high] = extent(lines.map((line) => line.y), [from, to]);
    high = Math.min(high, top ?? high);
    const shown = levels.filter((level) => level.y <= high && level.y > low - 0.5 * (high - low));
    low = Math.min(low, ...shown.map((level) => level.y));
    const padding = 0.04 * (high - low);
    return { first, last, low: from === low ? low : low - padding, high: high + padding, shown };
  }

  /** The grid, the numbers at the axes and the names of the horizontal lines. */
  function drawAxes(svg, { box, px, py, ranges, labels, small }) {
    const { left, right, bottom } = box;
    for (const value of ticks(ranges.low, ranges.high, small ? 4 : 6)) {
      svg.append(make("svg:line", { class: "grid", x1: left, x2: right, y1: py(value), y2: py(value) }),
        make("svg:text", { class: "tick", x: left - 8, y: py(value) + 4, "text-anchor": "end" }, format(value)));
    }
    const room = widthOf(format(ranges.last)) + 24;
    for (const value of ticks(ranges.first, ranges.last, Math.max(1, Math.min(10, (right - left) / room)))) {
      svg.append(make("svg:line", { class: "grid", x1: px(value), x2: px(value), y1: bottom, y2: bottom + 4 }),
        make("svg:text", { class: "tick", x: px(value), y: bottom + 17, "text-anchor": "middle" }, format(value)));
    }
    const middle = (left + right) / 2;
    svg.append(make("svg:text", { class: "tick", x: middle, y: bottom + 34, "text-anchor": "middle" }, "step"));
    for (const { y, place, text } of labels) {
      svg.append(make("svg:line", { class: "level", x1: left, x2: right, y1: y, y2: y }),
        make("svg:path", { class: "leader", d: `M${right} ${y}L${right + 8} ${place}` }),
        make("svg:text", { class: "tick", x: right + 11, y: place + 4 }, text));
    }
  }

  function drawLine(plot, line, px, py) {
    let path = "", pen = "M";
    line.x.forEach((step, index) => {
      if (line.y[index] === null) {
        pen = "M";
        return;
      }
      const [cx, cy] = [px(step).toFixed(1), py(line.y[index]).toFixed(1)];
      path += `${pen}${cx} ${cy}`;
      pen = "L";
      if (line.dots) plot.append(make("svg:circle", { class: line.class, cx, cy, r: 2.5 }));
    });
    plot.append(make("svg:path", { class: `line ${line.class}${line.isFaint ? " faint" : ""}`, d: path }));
  }

  /**
   * Draws `lines`, each {name, class, x, y, dots?, isFaint?}, where x are steps and y are values or null. `levels` are
   * horizontal lines {name, y}. The axis includes the values `from` and `to` and ends at `top`; higher values are cut.
   * `formatValue` formats a line's value for the readout. A small chart is half as wide. A line without a name needs no
   * legend: the chart's title names it.
   */
  function draw({
    title, lines, levels = [], from, to, top, small = false, formatValue = (line, value) => format(value),
  }) {
    lines = lines.filter((line) => line.x.length);
    const caption = make("figcaption", {}, title);
    if (!lines.length) {
      return make("figure", { "aria-label": title }, caption, make("p", { class: "muted" }, "No data yet."));
    }
    const ranges = rangesOf({ lines, levels, from, to, top });
    const steps = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
    const svg = make("svg:svg", {
      class: "chart", tabindex: 0, role: "img", "aria-label": `${title}; arrow keys move from step to step`,
    });
    const plot = make("svg:g");
    const cursor = make("svg:line", { class: "cursor", visibility: "hidden" });
    const marks = lines.map((line) => make("svg:circle", { class: `mark ${line.class}`, r: 4, visibility: "hidden" }));
    const readout = make("p", { class: "readout number", "aria-live": "polite" });
    const holder = make("div", { class: `plot${small ? " small" : ""}` }, svg);
    const clip = `clip${chartCount++}`;
    let selected = null, box, px, py;

    /** Draws the chart in the size of its place. */
    function render(width, height) {
      const texts = [...ranges.shown].sort((a, b) => b.y - a.y).map((level) => (
        shortened(`${level.name} ${format(level.y, 3)}`, 0.36 * width)));
      const numbers = ticks(ranges.low, ranges.high, small ? 4 : 6).map((value) => widthOf(format(value)));
      box = {
        left: Math.max(...numbers, 0) + 16, top: TOP, bottom: height - BOTTOM,
        right: width - Math.max(8 + widthOf(format(ranges.last)) / 2, ...texts.map((text) => widthOf(text) + 18)),
      };
      px = (step) => box.left + (step - ranges.first) / (ranges.last - ranges.first) * (box.right - box.left);
      py = (value) => box.bottom - (value - ranges.low) / (ranges.high - ranges.low) * (box.bottom - box.top);
      const heights = [...ranges.shown].sort((a, b) => b.y - a.y).map((level) => py(level.y));
      const places = spread(heights, box.top, box.bottom);
      const labels = heights.map((y, index) => ({ y, place: places[index], text: texts[index] }));
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      svg.replaceChildren(make("svg:clipPath", { id: clip }, make("svg:rect", {
        x: box.left - 4, y: box.top - 4, width: box.right - box.left + 8, height: box.bottom - box.top + 8,
      })));
      drawAxes(svg, { box, px, py, ranges, labels, small });
      plot.replaceChildren();
      plot.setAttribute("clip-path", `url(#${clip})`);
      for (const line of lines) drawLine(plot, line, px, py);
      cursor.setAttribute("y1", box.top);
      cursor.setAttribute("y2", box.bottom);
      svg.append(plot, cursor, ...marks);
      if (selected !== null) select(selected);
    }

    /** An entry of the readout: a line's color and a text. */
    function entry(line, text) {
      const key = make("span", { class: `key ${line.class}${line.isFaint ? " faint" : ""}`, "aria-hidden": "true" });
      return make("span", { class: "value" }, key, text);
    }

    function select(index) {
      selected = index;
      const step = steps[index];
      selections.set(title, step);
      cursor.setAttribute("x1", px(step));
      cursor.setAttribute("x2", px(step));
      cursor.setAttribute("visibility", "visible");
      const values = lines.map((line, number) => {
        const point = nearest(line.x, step);
        const value = line.y[point] ?? null;
        const isInside = value !== null && value <= ranges.high;
        marks[number].setAttribute("visibility", isInside ? "visible" : "hidden");
        if (isInside) {
          marks[number].setAttribute("cx", px(line.x[point]));
          marks[number].setAttribute("cy", py(value));
        }
        const where = line.x[point] === step ? "" : ` (step ${line.x[point].toLocaleString("en")})`;
        const name = line.name ? `${line.name} ` : "";
        return entry(line, `${name}${value === null ? "–" : formatValue(line, value)}${where}`);
      });
      readout.replaceChildren(make("strong", {}, `step ${step.toLocaleString("en")}`), ...values);
    }
    function deselect() {
      readout.replaceChildren(...lines.filter((line) => line.name).map((line) => entry(line, line.name)));
      cursor.setAttribute("visibility", "hidden");
      marks.forEach((mark) => mark.setAttribute("visibility", "hidden"));
      selected = null;
      selections.delete(title);
    }
    svg.addEventListener("pointermove", (event) => {
      const x = event.clientX - svg.getBoundingClientRect().left;
      const place = (x - box.left) / (box.right - box.left);
      select(nearest(steps, ranges.first + place * (ranges.last - ranges.first)));
    });
    svg.addEventListener("pointerleave", deselect);
    svg.addEventListener("blur", deselect);
    svg.addEventListener("keydown", (event) => {
      const stride = event.shiftKey ? Math.max(1, Math.round(steps.length / 20)) : 1;
      const next = {
        ArrowLeft: selected === null ? steps.length - 1 : selected - stride,
        ArrowRight: selected === null ? 0 : selected + stride,
        Home: 0, End: steps.length - 1,
      }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      select(Math.min(steps.length - 1, Math.max(0, next)));
    });
    const remembered = selections.get(title);
    deselect();
    if (remembered !== undefined) selected = nearest(steps, remembered);
    new ResizeObserver(() => {
      if (holder.clientWidth) render(holder.clientWidth, holder.clientHeight);
    }).observe(holder);
    const isNamed = lines.some((line) => line.name); // else the readout has room beside the title
    return make("figure", { "aria-label": title },
      ...(isNamed ? [caption, readout] : [make("div", { class: "caption" }, caption, readout)]), holder);
  }

  return { draw };
})();
