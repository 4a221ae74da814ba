"use strict";

/** Opens the model of a page, and continues texts token by token, as minigpt/generation/decoding.py does. */
const generation = (() => {
  /** The index of the first of `length` tokens that the model sees; the window slides by half a context. */
  function windowStart(length, positions) {
    const stride = Math.max(1, Math.floor(positions / 2));
    return Math.ceil(Math.max(0, length - positions) / stride) * stride;
  }

  /** The model on the fastest arithmetic that this browser has: { model, arithmetic }.
   *
   * A module is used only if it gives the logits of plain JavaScript: a relaxed operation may differ by processor. */
  function openModel(header, tensor, only) {
    const makers = {
      relaxed: () => fromModule("decode_relaxed.wasm"),
      simd: () => fromModule("decode_simd.wasm"),
      plain: () => new plain.PlainModel(header.config, tensor),
    };
    function fromModule(name) {
      const instance = wasm.instantiate(tensor(name));
      return instance && isExact(instance) ? new wasm.WasmModel(wasm.instantiate(tensor(name)), header.config, tensor) : null;
    }
    for (const arithmetic of only ? [only] : Object.keys(makers)) {
      const model = makers[arithmetic]();
      if (model) return { model, arithmetic };
    }
    return { model: null, arithmetic: null };
  }

  /** Whether a module computes the logits of a tiny model with extreme weights as plain JavaScript does. */
  function isExact(instance) {
    const config = { n_layer: 1, n_head: 1, n_embd: 64, n_positions: 2, vocab_size: 16, layer_norm_epsilon: 1e-5 };
    const tensors = selfTestTensors(config);
    const tensor = (name) => tensors.get(name);
    const expected = new plain.PlainModel(config, tensor).read([3, 5]);
    const found = new wasm.WasmModel(instance, config, tensor).read([3, 5]);
    return expected.every((value, id) => Math.abs(value - found[id]) < 0.02);
  }

  /** Tensors whose int8 weights are at both ends of their range, in the layout of a page. */
  function selfTestTensors({ n_embd: c, n_positions: p, vocab_size: v }) {
    const tensors = new Map();
    const add = (name, values) => tensors.set(name, new Uint8Array(values.buffer));
    const matrix = (name, inputs, outputs, bias = true) => {
      add(name, Int8Array.from({ length: inputs * outputs }, (_, i) => [127, -127, -127, 127, 127, 1, -64][i * 5 % 7]));
      add(`${name}.scale`, new Float32Array(outputs).fill(1 / 2000));
      if (bias) add(`${name}.bias`, Float32Array.from({ length: outputs }, (_, i) => i % 3 / 10));
    };
    const norm = (name) => {
      add(`${name}.weight`, new Float32Array(c).fill(1));
      add(`${name}.bias`, Float32Array.from({ length: c }, (_, i) => i % 2 / 10));
    };
    matrix("head", c, v, false);
    add("position_embedding", Float32Array.from({ length: p * c }, (_, i) => (i * 37 % 251 - 125) / 500));
    const name = "layers.0.";
    for (const each of ["attention_norm", "mlp_norm"]) norm(name + each);
    matrix(`${name}qkv_proj`, c, 3 * c);
    matrix(`${name}out_proj`, c, c);
    matrix(`${name}up_proj`, c, 4 * c);
    matrix(`${name}down_proj`, 4 * c, c);
    norm("final_norm");
    return tensors;
  }

  /** Continues texts; the tokens that the model has read already are not read again. */
  class Writer {
    constructor(model, tokenizer) {
      this.model = model;
      this.tokenizer = tokenizer;
      this.unused = tokenizer.bytes.flatMap((bytes, id) => bytes.length ? [] : [id]);
      this.read = []; // the tokens in the model's cache
    }

    /** The tokens that the model sees when it continues these. */
    seen(tokens) { return tokens.slice(windowStart(tokens.length, this.model.config.n_positions)); }

    /** How many of the first tokens are in the cache. */
    known(seen) {
      const different = seen.findIndex((id, index) => id !== this.read[index]);
      return different < 0 ? seen.length : different;
    }

    /** The logits after these tokens, of those ids that the tokenizer has. */
    logits(tokens) {
      const seen = this.seen(tokens), known = Math.min(this.known(seen), seen.length - 1);
      this.model.rewind(known);
      const logits = this.model.read(seen.slice(known));
      this.read = seen;
      return logits.subarray(0, this.tokenizer.bytes.length);
    }

    /** Reads some of those tokens that are not in the cache; whether all are now. */
    readSome(seen) {
      const known = this.known(seen), some = seen.slice(known, known + 64);
      if (some.length) {
        this.model.rewind(known);
        this.model.read(some);
        this.read = seen.slice(0, known + some.length);
      }
      return this.read.length >= seen.length;
    }

    /** The attention weights of the last of these tokens, which are in the cache, (L, H, T). */
    attention(seen) { return this.model.attention(seen.at(-1), seen.length - 1); }

    /** A text to continue: its tokens, how many are `generated`, and how many bytes at the end of the prompt were
     * `healed`: the first tokens spell them again. */
    start(prompt, kept = []) {
      const { ids, end } = constraining.encodePrompt(this.tokenizer, prompt);
      const constraint = new constraining.Constraint(this.tokenizer, ids, end);
      for (const id of kept) constraint.advance(id);
      return { tokens: [...ids, ...kept], generated: kept.length, healed: end.length, constraint };
    }

    /** Lists of the ids that must not come next. Those that were not in the training text may, if no other fits. */
    banned(logits, constraint) {
      const always = [this.unused, constraint.banned()], all = [...always, this.tokenizer.suppressed];
      return sampling.without(logits, ...all).some((value) => value > -Infinity) ? all : always;
    }

    /** Appends a token to a text. Returns { id, probability, alternatives: [[id, probability], …] }, of the model: before
     * penalty and temperature. The alternatives are the most likely of those tokens that may come next. */
    next(text, settings, alternatives = 10) {
      const { tokens, constraint } = text, logits = this.logits(tokens), banned = this.banned(logits, constraint);
      const id = sampling.choose(this.model, logits, tokens, text.generated, settings, ...banned);
      const allowed = sampling.without(logits, ...banned);
      const likely = sampling.largest(allowed, alternatives).filter((other) => allowed[other] > -Infinity);
      const [probability, ...others] = sampling.probabilities(logits, [id, ...likely], this.model);
      tokens.push(id);
      text.generated++;
      constraint.advance(id);
      return { id, probability, alternatives: likely.map((other, index) => [other, others[index]]) };
    }
  }

  return { openModel, Writer, windowStart };
})();
