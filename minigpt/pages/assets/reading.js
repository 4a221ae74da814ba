"use strict";

/**
 * Tokens as running text: whole characters, and the list of what else was likely.
 * A token is { id, token, bytes, logprob }; `bytes` is null for a special token, whose name is `token`.
 */
const reading = (() => {
  const { make, percent } = page;
  const CONTROLS = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu;
  const JOINERS = "\u200c\u200d"; // they shape letters and emoji
  const MARKS = "\u200e\u200f\u061c"; // of the direction of writing

  const symbol = (character) => (character < " "
    ? String.fromCodePoint(0x2400 + character.codePointAt(0))
    : `⟨${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);

  /** A text to show: control characters and those that reorder what is around them become visible symbols. */
  const visible = (text) => text.replace(CONTROLS, (character) => (
    `\n\t${JOINERS}${MARKS}`.includes(character) ? character : symbol(character)));

  /** A token on one line: ␣ for spaces, ↵ for newlines; its bytes if they are no whole characters. */
  function label({ token, bytes }) {
    if (bytes === null) return token;
    try {
      const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(Uint8Array.from(bytes));
      return text.replaceAll("\n", "↵").replaceAll(" ", "␣").replace(CONTROLS, symbol);
    } catch {
      return `⟨${bytes.map((byte) => byte.toString(16).padStart(2, "0")).join(" ")}⟩`;
    }
  }

  /**
   * Reads tokens one by one: `feed` returns the characters that a token completes, often none. The first `skipped`
   * bytes are not in the text.
   */
  function newReader(skipped = 0) {
    const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
    let left = skipped;
    function feed({ bytes }) {
      if (bytes === null) return decoder.decode();
      const kept = bytes.slice(left);
      left = Math.max(0, left - bytes.length);
      return decoder.decode(Uint8Array.from(kept), { stream: true });
    }
    return { feed };
  }

  /** Buttons for tokens with their probabilities; `noteOf` returns a note on a token, or null. */
  function choices(tokens, chosenId, choose, noteOf = () => null) {
    return make("ul", { class: "choices" }, ...tokens.map((token) => {
      const bar = make("span", { class: "share", "aria-hidden": "true" });
      bar.style.inlineSize = `${100 * Math.exp(token.logprob)}%`;
      const note = noteOf(token);
      return make("li", {}, make("button", {
        type: "button", "aria-current": token.id === chosenId ? "true" : null, click: () => choose(token),
      }, bar, make("bdi", {}, label(token)), make("small", {}, note ? `${note} ` : "", percent(token.logprob))));
    }));
  }

  return { visible, label, newReader, choices };
})();
