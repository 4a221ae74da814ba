"use strict";

/** The page of one inspection: its figures, and all views. */
(() => {
  const { data, main, start } = page;
  const shown = (value) => (value === null ? "–" : value.toFixed(2));
  start(data.model, `${data.layers} layers × ${data.heads} heads`, `${data.tokens.length} tokens`,
    `${shown(data.bitsPerToken)} bits per token`, `${shown(data.bitsPerByte)} bits per byte`);
  inspection.show(data, main);
})();
