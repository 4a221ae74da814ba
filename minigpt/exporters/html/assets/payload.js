"use strict";

/** Reads what the page carries: compressed bytes in base64, a JSON header, and the tensors that it names. */
const payload = (() => {
  /** The bytes of several base64 texts. */
  function decodeBase64(texts) {
    const parts = texts.map((text) => {
      const binary = atob(text);
      const bytes = new Uint8Array(binary.length);
      for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
      return bytes;
    });
    return parts;
  }

  /** The original of zlib-compressed parts, whose length is known; `onProgress` gets the fraction that is done. */
  async function inflate(parts, length, onProgress = () => {}) {
    const reader = new Blob(parts).stream().pipeThrough(new DecompressionStream("deflate")).getReader();
    const bytes = new Uint8Array(length);
    let filled = 0;
    for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
      bytes.set(piece.value, filled);
      filled += piece.value.length;
      onProgress(filled / length);
    }
    if (filled !== length) throw new Error(`the page is incomplete: ${filled} of ${length} bytes`);
    return bytes;
  }

  /** The header, and a function that gives a named tensor as bytes. */
  function open(bytes) {
    const view = new DataView(bytes.buffer, bytes.byteOffset);
    const start = view.getUint32(0, true);
    const header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + start)));
    const tensors = new Map(header.tensors.map(([name, offset, length]) => [name, [offset, length]]));
    const tensor = (name) => {
      const [offset, length] = tensors.get(name);
      return bytes.subarray(offset, offset + length);
    };
    return { header, tensor };
  }

  /** The same, from the base64 texts. */
  async function read(texts, length, onProgress) {
    return open(await inflate(decodeBase64(texts), length, onProgress));
  }

  return { read };
})();
