"use strict";

/** Byte-pair encoding with the ids of minigpt's tokenizers, and the decoding of a stream of tokens. */
const tokenizing = (() => {
  // GPT-2's split into pre-tokens. White space is Unicode's: JavaScript's \s has U+FEFF and lacks U+0085.
  const SPLIT = new RegExp(
    "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\p{White_Space}\\p{L}\\p{N}]+"
    + "|\\p{White_Space}+(?!\\P{White_Space})|\\p{White_Space}+", "gu");
  const CHARACTERS = /[\s\S]/gu;
  const encoder = new TextEncoder();

  /** Which character stands for which byte in token strings: printable ones of Latin-1 for themselves. */
  const BYTE_OF = new Map();
  for (let byte = 0, next = 256; byte < 256; byte++) {
    const printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    BYTE_OF.set(String.fromCharCode(printable ? byte : next++), String.fromCharCode(byte));
  }

  /** Bytes as a string with a character from U+0000 to U+00FF for each. */
  function binary(bytes) {
    let result = "";
    for (let i = 0; i < bytes.length; i += 8192) result += String.fromCharCode(...bytes.subarray(i, i + 8192));
    return result;
  }

  const fromBinary = (text) => Uint8Array.from(text, (character) => character.charCodeAt(0));

  class Tokenizer {
    /** `saved` has `tokens`, strings by id in GPT-2's byte alphabet; `ranks`, ids in the order of their merges;
     * `named`, special and added tokens by name; `added`, the names that are found in a text; `byCharacter`; `hasMerges`;
     * `special`, ids; `ends`, the ids at which a text ends; `prefix`, the ids that begin a prompt; `suppressed`, ids that
     * the model has not seen in training. */
    constructor(saved) {
      this.endOfText = saved.endOfText;
      this.prefix = saved.prefix;
      this.suppressed = saved.suppressed;
      const named = new Map(Object.entries(saved.named).map(([name, id]) => [id, name]));
      this.bytes = saved.tokens.map((token, id) => named.has(id)
        ? encoder.encode(named.get(id))
        : fromBinary(Array.from(token, (character) => BYTE_OF.get(character)).join("")));
      this.ranks = new Map(saved.ranks.map((id, rank) => [binary(this.bytes[id]), rank]));
      this.ids = saved.ranks;
      this.special = new Set(saved.special); // stand only between two characters
      this.ends = new Set(saved.ends);
      const words = saved.ends.filter((id) => !this.special.has(id));
      this.endTexts = words.map((id) => new TextDecoder().decode(this.bytes[id])).filter((text) => text);
      this.hasMerges = saved.hasMerges;
      this.split = saved.byCharacter ? CHARACTERS : SPLIT;
      this.named = saved.named;
      const names = saved.added.map((name) => name.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&"));
      this.added = names.length ? new RegExp(`(${names.join("|")})`, "u") : null;
    }

    /** The ids of a text. Unpaired surrogates become U+FFFD. */
    encode(text) {
      const whole = new TextDecoder("utf-8", { ignoreBOM: true }).decode(encoder.encode(text));
      const pieces = this.added ? whole.split(this.added) : [whole];
      return pieces.flatMap((piece, index) => index % 2 ? [this.named[piece]] : this.#encodePlain(piece));
    }

    #encodePlain(text) {
      const ids = [];
      for (const [piece] of text.matchAll(this.split)) {
        for (const rank of this.#merge(binary(encoder.encode(piece)))) ids.push(this.ids[rank]);
      }
      return ids;
    }

    /** The ranks of the tokens of one pre-token: neighbors that form the token of the lowest rank are joined first. */
    #merge(bytes) {
      const whole = this.ranks.get(bytes);
      if (whole !== undefined) return [whole];
      const starts = Array.from({ length: bytes.length + 1 }, (_, index) => index);
      const rankAt = (index) => index + 2 < starts.length
        ? this.ranks.get(bytes.slice(starts[index], starts[index + 2])) ?? Infinity : Infinity;
      const pairs = starts.map((_, index) => rankAt(index));
      for (;;) {
        let lowest = 0;
        for (let i = 1; i < pairs.length; i++) if (pairs[i] < pairs[lowest]) lowest = i;
        if (!(pairs[lowest] < Infinity)) break;
        starts.splice(lowest + 1, 1);
        pairs.splice(lowest + 1, 1);
        pairs[lowest] = rankAt(lowest);
        if (lowest > 0) pairs[lowest - 1] = rankAt(lowest - 1);
      }
      return starts.slice(0, -1).map((start, index) => this.ranks.get(bytes.slice(start, starts[index + 1])));
    }

    /** A function that takes ids one by one and returns the characters that they complete; without an id, the rest. */
    decoder() {
      const utf8 = new TextDecoder("utf-8", { ignoreBOM: true });
      return (id) => id === undefined ? utf8.decode() : utf8.decode(this.bytes[id], { stream: true });
    }

    decode(ids) {
      const feed = this.decoder();
      return ids.map((id) => feed(id)).join("") + feed();
    }
  }

  return { Tokenizer };
})();
