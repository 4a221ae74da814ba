"use strict";

/** Which tokens may come next, so that a text stays UTF-8 and begins as its prompt ends (minigpt/generation: constraint
 * and healing). */
const constraining = (() => {
  // A state is the list of ranges that the next bytes of a character must be in; START has none.
  const CONTINUATION = [0x80, 0xbf], START = [];
  const FIRST = [
    [0xc2, 0xdf, [CONTINUATION]], [0xe0, 0xe0, [[0xa0, 0xbf], CONTINUATION]],
    [0xe1, 0xec, [CONTINUATION, CONTINUATION]], [0xed, 0xed, [[0x80, 0x9f], CONTINUATION]],
    [0xee, 0xef, [CONTINUATION, CONTINUATION]], [0xf0, 0xf0, [[0x90, 0xbf], CONTINUATION, CONTINUATION]],
    [0xf1, 0xf3, [CONTINUATION, CONTINUATION, CONTINUATION]], [0xf4, 0xf4, [[0x80, 0x8f], CONTINUATION, CONTINUATION]],
  ];

  /** The state after these bytes; null if they are not UTF-8. */
  function after(state, bytes) {
    for (const byte of bytes) {
      if (state.length) {
        if (byte < state[0][0] || byte > state[0][1]) return null;
        state = state.slice(1);
      } else if (byte >= 0x80) {
        const first = FIRST.find(([low, high]) => low <= byte && byte <= high);
        if (!first) return null;
        state = first[2];
      }
    }
    return state;
  }

  const concatenate = (parts) => Uint8Array.from(parts.flatMap((part) => Array.from(part)));
  const beginsWith = (bytes, beginning) => beginning.every((byte, index) => index >= bytes.length || byte === bytes[index]);

  /** What a text so far allows; `beginning` has the bytes that must come first. */
  class Constraint {
    constructor(tokenizer, prompt, beginning) {
      this.tokenizer = tokenizer;
      this.state = after(START, concatenate(prompt.map((id) => tokenizer.bytes[id]))); // null: anything may follow
      this.beginning = beginning;
    }

    /** After one more token. */
    advance(id) {
      const bytes = this.tokenizer.bytes[id];
      if (this.state) this.state = after(this.state, bytes);
      this.beginning = this.beginning.subarray(bytes.length);
    }

    /** The ids that must not come next. Those of a state are found once. */
    banned() {
      const { tokenizer, state, beginning } = this;
      if (!state && !beginning.length) return [];
      const key = `${JSON.stringify(state)} ${beginning}`;
      tokenizer.banned ??= new Map();
      if (!tokenizer.banned.has(key)) {
        tokenizer.banned.set(key, tokenizer.bytes.flatMap((bytes, id) => this.#allows(bytes, id) ? [] : [id]));
      }
      return tokenizer.banned.get(key);
    }

    #allows(bytes, id) {
      const { tokenizer, state, beginning } = this;
      if (state && (!bytes.length || !after(state, bytes))) return false;
      if (tokenizer.special.has(id)) return !state?.length && !beginning.length;
      return beginsWith(bytes, beginning);
    }
  }

  /** The ids of a prompt, and the end of its text that they lack, in bytes. An empty prompt becomes an end-of-text.
   *
   * The end is one whose tokens would be others if the text went on: white space, or an apostrophe. */
  function encodePrompt(tokenizer, text) {
    const ids = tokenizer.encode(text), { prefix } = tokenizer;
    const none = { ids: [...prefix, ...ids], end: new Uint8Array() };
    if (!none.ids.length) return { ...none, ids: [tokenizer.endOfText] };
    if (!ids.length) return none;
    const isSpace = /[\p{White_Space}\x1c-\x1f]$/u.test(text);
    if (!tokenizer.hasMerges || !(isSpace || text.endsWith("'"))) return none;
    const next = isSpace ? ["a", " ", "\n"] : ["s", "t", "ll", "ve", "re", "d", "m"];
    let kept = Math.min(...next.map((more) => {
      const others = tokenizer.encode(text + more), different = ids.findIndex((id, index) => id !== others[index]);
      return different < 0 ? ids.length : different;
    }));
    const endOf = () => concatenate(ids.slice(kept).map((id) => tokenizer.bytes[id]));
    while (after(START, endOf())?.length !== 0 || (isSpace && kept === ids.length)) kept--;
    const healed = new TextDecoder().decode(endOf());
    if (tokenizer.endTexts.some((each) => healed.includes(each))) return none; // to spell it again could end the text
    const known = [...prefix, ...ids.slice(0, kept)];
    return { ids: known.length ? known : [tokenizer.endOfText], end: endOf() };
  }

  return { Constraint, encodePrompt };
})();
