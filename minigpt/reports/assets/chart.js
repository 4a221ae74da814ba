"use strict";

/** An SVG chart of lines over steps; the mouse or the arrow keys select a step and show the lines' values at it. */
const chart = (() => {
  const { make } = page;
  const MARGIN = { left: 64, right: 64, top: 12, bottom: 44 };
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

  /** A number as text: 1,200, 0.0032, 4.2e-6. */
  function format(value, digits = 4) {
    if (value === null || value === undefined) return "–";
    if (value !== 0 && Math.abs(value) < 1e-3) return value.toExponential(2);
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

  /**
   * Draws `lines`, each {name, class, x, y, dots?, isFaint?}, where x are steps and y are values or null. `levels` are
   * horizontal lines {name, y}. The axis includes the values `from` and `to`. `second` is an axis on the right, {label,
   * factor}. `formatValue` formats a line's value for the readout. A small chart is half as wide.
   */
  function draw({
    title, label, lines, levels = [], from, to, small = false, second = null,
    formatValue = (line, value) => format(value),
  }) {
    lines = lines.filter((line) => line.x.length);
    const [width, height] = small ? [560, 260] : [1120, 400];  // about its size in pixels
    if (!lines.length) return make("p", { class: "muted" }, "No data yet.");
    const [left, right] = [MARGIN.left, width - MARGIN.right], [top, bottom] = [MARGIN.top, height - MARGIN.bottom];
    const [first, last] = extent(lines.map((line) => line.x), []);
    let [low, high] = extent(lines.map((line) => line.y), [from, to]);
    const visible = levels.filter((level) => level.y <= high && level.y > low - 0.5 * (high - low));
    low = Math.min(low, ...visible.map((level) => level.y));
    const padding = 0.04 * (high - low);
    [low, high] = [from === low ? low : low - padding, high + padding];
    const px = (step) => left + (step - first) / (last - first) * (right - left);
    const py = (value) => bottom - (value - low) / (high - low) * (bottom - top);
    const svg = make("svg:svg", {
      viewBox: `0 0 ${width} ${height}`, class: "chart", tabindex: 0, role: "img",
      "aria-label": `${title}; arrow keys move from step to step`,
    });
    const clip = `clip${chartCount++}`;
    svg.append(make("svg:clipPath", { id: clip },
      make("svg:rect", { x: left, y: top, width: right - left, height: bottom - top })));

    for (const value of ticks(low, high, 6)) {
      svg.append(make("svg:line", { class: "grid", x1: left, x2: right, y1: py(value), y2: py(value) }),
        make("svg:text", { class: "tick", x: left - 8, y: py(value) + 4, "text-anchor": "end" }, format(value)));
    }
    if (second) {
      for (const value of ticks(low * second.factor, high * second.factor, 6)) {
        svg.append(make("svg:text", { class: "tick", x: right + 8, y: py(value / second.factor) + 4 }, format(value)));
      }
      svg.append(make("svg:text", {
        class: "tick", "text-anchor": "middle", transform: `translate(${width - 8} ${(top + bottom) / 2}) rotate(-90)`,
      }, second.label));
    }
    for (const value of ticks(first, last, small ? 5 : 10)) {
      svg.append(make("svg:line", { class: "grid", x1: px(value), x2: px(value), y1: bottom, y2: bottom + 4 }),
        make("svg:text", { class: "tick", x: px(value), y: bottom + 18, "text-anchor": "middle" }, format(value)));
    }
    svg.append(
      make("svg:text", { class: "tick", x: (left + right) / 2, y: height - 6, "text-anchor": "middle" }, "step"),
      make("svg:text", {
        class: "tick", "text-anchor": "middle", transform: `translate(14 ${(top + bottom) / 2}) rotate(-90)`,
      }, label));

    let lowest = -Infinity;  // names that would overlap move down
    for (const level of [...visible].sort((a, b) => b.y - a.y)) {
      const y = Math.max(py(level.y) - 4, lowest + 13);
      lowest = y;
      svg.append(make("svg:line", { class: "level", x1: left, x2: right, y1: py(level.y), y2: py(level.y) }),
        make("svg:text", { class: "tick", x: right - 4, y, "text-anchor": "end" },
          `${level.name} ${format(level.y, 3)}`));
    }
    for (const line of lines) {
      let path = "", pen = "M";
      line.x.forEach((step, index) => {
        if (line.y[index] === null) {
          pen = "M";
          return;
        }
        path += `${pen}${px(step).toFixed(1)} ${py(line.y[index]).toFixed(1)}`;
        pen = "L";
        if (!line.dots) return;
        svg.append(make("svg:circle", { class: line.class, cx: px(step), cy: py(line.y[index]), r: 2.5 }));
      });
      svg.append(make("svg:path", {
        class: `${line.class}${line.isFaint ? " faint" : ""}`, d: path, "clip-path": `url(#${clip})`,
      }));
    }

    const steps = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
    const cursor = make("svg:line", { class: "cursor", y1: top, y2: bottom, visibility: "hidden" });
    const marks = lines.map((line) => make("svg:circle", { class: `mark ${line.class}`, r: 4, visibility: "hidden" }));
    svg.append(cursor, ...marks);
    const readout = make("p", { class: `readout number${small ? "" : " wide"}`, "aria-live": "polite" });
    let selected = null;

    /** An entry of the readout: a line's color and a text. */
    function entry(line, text) {
      const key = make("span", { class: `key ${line.class}${line.isFaint ? " faint" : ""}`, "aria-hidden": "true" });
      return make("span", { class: "value" }, key, text);
    }

    function select(index) {
      selected = index;
      const step = steps[index];
      cursor.setAttribute("x1", px(step));
      cursor.setAttribute("x2", px(step));
      cursor.setAttribute("visibility", "visible");
      const values = lines.map((line, number) => {
        const point = nearest(line.x, step);
        const hasValue = line.y[point] !== null && line.y[point] !== undefined;
        marks[number].setAttribute("visibility", hasValue ? "visible" : "hidden");
        if (hasValue) {
          marks[number].setAttribute("cx", px(line.x[point]));
          marks[number].setAttribute("cy", py(line.y[point]));
        }
        const where = line.x[point] === step ? "" : ` (step ${line.x[point].toLocaleString("en")})`;
        return entry(line, `${line.name} ${hasValue ? formatValue(line, line.y[point]) : "–"}${where}`);
      });
      readout.replaceChildren(make("strong", {}, `step ${step.toLocaleString("en")}`), ...values);
    }
    function deselect() {
      readout.replaceChildren(...lines.map((line) => entry(line, line.name)));
      cursor.setAttribute("visibility", "hidden");
      marks.forEach((mark) => mark.setAttribute("visibility", "hidden"));
      selected = null;
    }
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const x = (event.clientX - box.left) * width / box.width;
      select(nearest(steps, first + (x - left) / (right - left) * (last - first)));
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
    deselect();
    return make("figure", { "aria-label": title }, make("figcaption", {}, title), readout, svg);
  }

  return { draw };
})();
