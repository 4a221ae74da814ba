"use strict";

/** Reads what the page carries: compressed bytes in base64, a JSON header, and the tensors that it names. */
const payload = (() => {
  /** The bytes of a base64 text. */
  function decodeBase64(text) {
    if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
    const binary = atob(text), bytes = new Uint8Array(binary.length);
    for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
    return bytes;
  }

  /** Takes the texts one by one with `feed`, while others are still to come; `end` gives what they hold, as `open`
   * does. The original of the compressed bytes has `length` bytes; `onProgress` gets the fraction that is done, and
   * `onHeader` the header when it has come. */
  function newReader(length, onProgress = () => {}, onHeader = () => {}) {
    const { readable, writable } = new DecompressionStream("deflate");
    const writer = writable.getWriter(), bytes = new Uint8Array(length), filling = fill();

    async function fill() {
      const reader = readable.getReader();
      let filled = 0, header = null;
      for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
        bytes.set(piece.value, filled);
        filled += piece.value.length;
        if (header === null && (header = readHeader(bytes.subarray(0, filled)))) onHeader(header);
        onProgress(filled / length);
      }
      if (filled !== length) throw new Error(`the page is incomplete: ${filled} of ${length} bytes`);
    }

    const ignore = () => {}; // `filling` fails as well
    filling.catch(ignore);
    return {
      feed: (text) => writer.write(decodeBase64(text)).catch(ignore),
      async end() {
        writer.close().catch(ignore);
        await filling;
        return open(bytes);
      },
    };
  }

  /** The header at the beginning of these bytes; null if they end before it does. */
  function readHeader(bytes) {
    if (bytes.length < 4) return null;
    const end = 4 + new DataView(bytes.buffer).getUint32(0, true);
    return bytes.length < end ? null : JSON.parse(new TextDecoder().decode(bytes.subarray(4, end)));
  }

  /** The header, and a function that gives a named tensor as bytes. */
  function open(bytes) {
    const header = readHeader(bytes);
    const tensors = new Map(header.tensors.map(([name, offset, length]) => [name, [offset, length]]));
    const tensor = (name) => {
      const [offset, length] = tensors.get(name);
      return bytes.subarray(offset, offset + length);
    };
    return { header, tensor };
  }

  return { newReader };
})();
