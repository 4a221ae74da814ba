"use strict";

/** The layout of the tensors of a page, and the embeddings of tokens: 24 bits each, with a scale for each row. */
const embeddings = (() => {
  /** A view of the bytes as numbers of this type; all sections of a page are aligned to 64 bytes. */
  const as = (Type, bytes) => new Type(bytes.buffer, bytes.byteOffset, bytes.byteLength / Type.BYTES_PER_ELEMENT);

  /** Where the weight of an output and an input is in panels of 16 outputs, (out / 16, in / 4, 16, 4). */
  const place = (output, input, width) =>
    (output >> 4) * 16 * width + (input >> 2) * 64 + (output & 15) * 4 + (input & 3);

  /** A function that writes the embedding of a token to `target`: the output matrix has its upper 8 bits. */
  function tokenEmbedding(config, tensor) {
    const upper = as(Int8Array, tensor("head")), lower = as(Int16Array, tensor("token_embedding"));
    const scale = as(Float32Array, tensor("head.scale"));
    const width = Math.ceil(config.n_embd / 4) * 4;
    return (id, target) => {
      const panels = place(id, 0, width), row = id * config.n_embd;
      for (let i = 0; i < config.n_embd; i++) {
        target[i] = scale[id] * (upper[panels + place(0, i, width)] + lower[row + i] / 65536);
      }
    };
  }

  return { as, place, tokenEmbedding };
})();
