"use strict";

/** The model in plain JavaScript, with the arithmetic of decode.c: the fallback without SIMD, the other implementation's
 * reference in tests, and for both the attention weights. */
const plain = (() => {
  /** A view of the bytes as numbers of this type; all tensors of a page are aligned to 64 bytes. */
  const as = (Type, bytes) => new Type(bytes.buffer, bytes.byteOffset, bytes.byteLength / Type.BYTES_PER_ELEMENT);

  /** Where the weight of an output and an input is in panels of 16 outputs, (out / 16, in / 4, 16, 4). */
  const place = (output, input, width) =>
    (output >> 4) * 16 * width + (input >> 2) * 64 + (output & 15) * 4 + (input & 3);

  const BLOCK = 64; // activations with one scale
  const fround = Math.fround;

  class PlainModel {
    /** `cache` gives the keys and values of a layer, (H, n_positions, D): those of another implementation, or new ones. */
    constructor(config, tensor, cache = newCache(config)) {
      this.config = config;
      this.length = 0;
      this.positions = as(Float32Array, tensor("position_embedding"));
      const floats = (name) => as(Float32Array, tensor(name));
      const matrix = (name, inputs, outputs, hasBias = true) => ({
        weight: as(Int8Array, tensor(name)), scale: floats(`${name}.scale`),
        bias: hasBias ? floats(`${name}.bias`) : new Float32Array(outputs), inputs, outputs,
      });
      const norm = (name) => ({ weight: floats(`${name}.weight`), bias: floats(`${name}.bias`) });
      const c = config.n_embd;
      this.layers = Array.from({ length: config.n_layer }, (_, index) => ({
        attentionNorm: norm(`layers.${index}.attention_norm`), mlpNorm: norm(`layers.${index}.mlp_norm`),
        qkv: matrix(`layers.${index}.qkv_proj`, c, 3 * c), out: matrix(`layers.${index}.out_proj`, c, c),
        up: matrix(`layers.${index}.up_proj`, c, 4 * c), down: matrix(`layers.${index}.down_proj`, 4 * c, c),
        ...cache(index),
      }));
      this.finalNorm = norm("final_norm");
      this.head = matrix("head", c, config.vocab_size, false);
    }

    /** Forgets what was read after the first `length` tokens. */
    rewind(length) { this.length = length; }

    /** Replaces values by e^(value - highest), and returns their sum. */
    exponentials(values, highest) {
      let total = 0;
      for (let i = 0; i < values.length; i++) total += (values[i] = Math.exp(fround(values[i] - highest)));
      return total;
    }

    /** Reads ids, and returns the logits after the last one, (V); with `all`, after each, (T * V). */
    read(ids, all = false) {
      const v = this.config.vocab_size;
      const found = new Float32Array((all ? ids.length : 1) * v);
      ids.forEach((id, index) => {
        const x = this.#features(id, this.length++);
        if (all || index === ids.length - 1) found.set(multiply(x, this.head), all ? index * v : 0);
      });
      return found;
    }

    /** The attention weights of an id that was read at this position, (L, H, position + 1). */
    attention(id, position) {
      const { n_layer: layers, n_head: heads } = this.config;
      const found = new Float32Array(layers * heads * (position + 1));
      this.#features(id, position, found);
      return found;
    }

    /** The final features of an id at a position, (C). It is read, unless its attention weights are `wanted`. */
    #features(id, position, wanted = null) {
      const { n_embd: c, n_positions: p, n_head: heads, layer_norm_epsilon: epsilon } = this.config;
      if (position >= p) throw new Error("a position is outside its table");
      const width = c / heads, ofLayer = heads * (position + 1);
      const x = new Float32Array(c);
      const { weight, scale } = this.head, padded = Math.ceil(c / 4) * 4;
      for (let i = 0; i < c; i++) {
        x[i] = fround(weight[place(id, i, padded)] * scale[id]) + this.positions[position * c + i];
      }
      const add = (y) => { for (let i = 0; i < c; i++) x[i] += y[i]; };
      this.layers.forEach((layer, index) => {
        const qkv = multiply(layerNorm(x, layer.attentionNorm, epsilon), layer.qkv);
        for (let head = 0; head < heads && !wanted; head++) {
          const own = c + head * width, at = (head * p + position) * width;
          layer.keys.set(qkv.subarray(own, own + width), at);
          layer.values.set(qkv.subarray(own + c, own + c + width), at);
        }
        const weights = wanted?.subarray(index * ofLayer, (index + 1) * ofLayer);
        add(multiply(this.#attend(qkv, layer, position + 1, weights), layer.out));
        add(multiply(gelu(multiply(layerNorm(x, layer.mlpNorm, epsilon), layer.up)), layer.down));
      });
      return layerNorm(x, this.finalNorm, epsilon);
    }

    /** Attention of a query to the first `count` positions, head by head, (C); the weights, (H, count), go to `found`. */
    #attend(query, { keys, values }, count, found) {
      const { n_embd: c, n_head: heads, n_positions: p } = this.config, width = c / heads;
      const result = new Float32Array(c), weights = new Float64Array(count);
      for (let head = 0; head < heads; head++) {
        const first = head * width, start = head * p * width;
        let highest = -Infinity, total = 0;
        for (let s = 0; s < count; s++) {
          let sum = 0;
          for (let i = 0; i < width; i++) sum += query[first + i] * keys[start + s * width + i];
          weights[s] = sum / Math.sqrt(width);
          highest = Math.max(highest, weights[s]);
        }
        for (let s = 0; s < count; s++) total += (weights[s] = Math.exp(weights[s] - highest));
        found?.set(weights.map((weight) => weight / total), head * count);
        for (let i = 0; i < width; i++) {
          let sum = 0;
          for (let s = 0; s < count; s++) sum += weights[s] * values[start + s * width + i];
          result[first + i] = sum / total;
        }
      }
      return result;
    }
  }

  /** New memory for each layer's keys and values, (H, n_positions, D). */
  const newCache = ({ n_positions: p, n_embd: c }) => () => (
    { keys: new Float32Array(p * c), values: new Float32Array(p * c) });

  function layerNorm(x, { weight, bias }, epsilon) {
    const mean = x.reduce((sum, value) => sum + value, 0) / x.length;
    const variance = x.reduce((sum, value) => sum + (value - mean) ** 2, 0) / x.length;
    return x.map((value, i) => (value - mean) / Math.sqrt(variance + epsilon) * weight[i] + bias[i]);
  }

  /** GPT-2's GELU: 0.5 x (1 + tanh u) = x / (1 + e^(-2u)). */
  function gelu(x) {
    return x.map((v) => v / (1 + Math.exp(-2 * 0.79788456 * (v + 0.044715 * v ** 3))));
  }

  /** Activations in int8, with a scale for each BLOCK of them. */
  function quantize(x) {
    const values = new Int8Array(Math.ceil(x.length / 4) * 4), scales = [];
    for (let from = 0; from < x.length; from += BLOCK) {
      const block = x.subarray(from, from + BLOCK);
      const largest = block.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
      const inverse = largest > 1e-35 ? fround(127 / largest) : 0;
      scales.push(fround(largest / 127));
      // Adding 1.5 * 2^23 in float32 leaves no bits for a fraction: to the nearest integer, half to even.
      block.forEach((value, i) => { values[from + i] = fround(fround(value * inverse) + 12582912) - 12582912; });
    }
    return { values, scales };
  }

  /** y = x W^T + bias, from int8 weights in panels. */
  function multiply(x, { weight, scale, bias, outputs }) {
    const { values, scales } = quantize(x), width = values.length;
    const result = new Float32Array(outputs);
    for (let output = 0; output < outputs; output++) {
      const row = place(output, 0, width);
      let sum = 0;
      for (let block = 0; block < scales.length; block++) {
        const end = Math.min((block + 1) * BLOCK, width);
        let products = 0;
        for (let i = block * BLOCK; i < end; i += 4) {
          const at = row + i * 16;
          products += weight[at] * values[i] + weight[at + 1] * values[i + 1]
            + weight[at + 2] * values[i + 2] + weight[at + 3] * values[i + 3];
        }
        sum = fround(sum + fround(products * scales[block]));
      }
      result[output] = fround(bias[output] + fround(sum * scale[output]));
    }
    return result;
  }

  return { PlainModel };
})();
