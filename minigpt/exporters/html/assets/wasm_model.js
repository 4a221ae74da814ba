"use strict";

/** The model on the WebAssembly module of decode_wasm.c. */
const wasm = (() => {
  const MAX_ROWS = 128; // ids that are read at once, at most decode.c's MAX_ROWS
  const INT8 = 2;
  const ERRORS = ["", "out of memory for a step", "an id or a position is outside its table"];
  // Bytes of the structures of decode.c, whose integers have 64 bits and whose addresses have 32.
  const MATRIX = 40, LAYER = 184, MODEL = 112, ROWS = 32;

  /** The same interface as the model in plain_model.js. */
  class WasmModel {
    constructor(instance, config, tensor) {
      this.config = config;
      this.length = 0;
      this.calls = instance.exports;
      const c = config.n_embd, v = config.vocab_size;
      this.ids = this.allocate(3 * MAX_ROWS * 8);
      this.rows = this.allocate(ROWS);
      const cache = 4 * config.n_positions * c;
      this.places = new Map(); // [address, bytes] of tensors by name
      const place = (name) => this.copy(name, tensor(name));
      const layers = this.allocate(config.n_layer * LAYER);
      for (let index = 0; index < config.n_layer; index++) {
        const at = layers + index * LAYER, name = `layers.${index}.`;
        const norms = ["attention_norm.weight", "attention_norm.bias", "mlp_norm.weight", "mlp_norm.bias"];
        this.put(at, norms.map((norm) => place(name + norm)));
        for (const [number, [matrix, inputs, outputs]] of [
          ["qkv_proj", c, 3 * c], ["out_proj", c, c], ["up_proj", c, 4 * c], ["down_proj", 4 * c, c],
        ].entries()) this.putMatrix(at + 16 + number * MATRIX, name + matrix, inputs, outputs, tensor, true);
        const both = [`${name}keys`, `${name}values`];
        for (const each of both) this.places.set(each, [this.allocate(cache), cache]);
        this.put(at + 176, both.map((each) => this.places.get(each)[0]));
      }
      this.model = this.allocate(MODEL);
      this.putLong(this.model, [config.n_layer, config.n_head, c, config.n_positions, v]);
      const positions = place("position_embedding");
      const norm = [place("final_norm.weight"), place("final_norm.bias")];
      this.put(this.model + 44, [0, positions, ...norm]); // tokens are looked up in the head
      this.view().setFloat32(this.model + 40, config.layer_norm_epsilon, true);
      this.putMatrix(this.model + 64, "head", c, v, tensor, false);
      this.put(this.model + 104, [layers]);
      this.scratch = this.allocate(Math.ceil(v / 4) * 16);
      this.room = 0; // rows of logits that there is memory for
    }

    allocate(size) {
      const address = this.calls.minigpt_allocate(size) >>> 0;
      if (address === 0) throw new Error("not enough memory for this model");
      return address;
    }

    view() { return new DataView(this.calls.memory.buffer); }

    /** Copies a tensor into the module's memory. */
    copy(name, bytes) {
      const address = this.allocate(bytes.byteLength);
      new Uint8Array(this.calls.memory.buffer).set(bytes, address);
      this.places.set(name, [address, bytes.byteLength]);
      return address;
    }

    put(address, numbers) {
      const view = this.view();
      numbers.forEach((number, index) => view.setUint32(address + 4 * index, number, true));
    }

    putLong(address, numbers) {
      const view = this.view();
      numbers.forEach((number, index) => view.setBigInt64(address + 8 * index, BigInt(number), true));
    }

    putMatrix(address, name, inputs, outputs, tensor, hasBias) {
      const place = (part) => this.copy(part, tensor(part));
      const bias = hasBias ? place(`${name}.bias`) : 0;
      this.put(address, [place(name), place(`${name}.scale`), bias]);
      this.putLong(address + 16, [inputs, outputs, INT8]);
    }

    /** Forgets what was read after the first `length` tokens. */
    rewind(length) { this.length = length; }

    /** The attention weights of an id that was read at this position, (L, H, position + 1): computed again in
     * JavaScript, with the weights, keys and values that are in the module's memory. */
    attention(id, position) {
      const { buffer } = this.calls.memory; // another one when the memory has grown
      const bytes = (name) => new Uint8Array(buffer, ...this.places.get(name));
      const floats = (name) => new Float32Array(buffer, this.places.get(name)[0], this.places.get(name)[1] / 4);
      const cache = (layer) => ({ keys: floats(`layers.${layer}.keys`), values: floats(`layers.${layer}.values`) });
      return new plain.PlainModel(this.config, bytes, cache).attention(id, position);
    }

    /** Replaces values by e^(value - highest), and returns their sum; there are at most as many as logits. */
    exponentials(values, highest) {
      const padded = Math.ceil(values.length / 4) * 4;
      const place = new Float32Array(this.calls.memory.buffer, this.scratch, padded);
      place.fill(-Infinity, values.length);
      place.set(values);
      const total = this.calls.minigpt_exponentials(this.scratch, padded, highest);
      values.set(place.subarray(0, values.length));
      return total;
    }

    /** Reads ids, and returns the logits after the last one, (V), which the next call overwrites; with `all`, the logits
     * after each, (T * V). */
    read(ids, all = false) {
      const v = this.config.vocab_size;
      const found = all ? new Float32Array(ids.length * v) : null;
      for (let begin = 0; begin < ids.length; begin += MAX_ROWS) {
        const chunk = ids.slice(begin, begin + MAX_ROWS), last = begin + chunk.length === ids.length;
        const wanted = all ? chunk.length : last ? 1 : 0;
        if (wanted > this.room) {
          this.logits = this.allocate(wanted * v * 4);
          this.room = wanted;
        }
        const columns = [0, 1, 2].map((column) => this.ids + column * MAX_ROWS * 8);
        this.putLong(columns[0], chunk);
        this.putLong(columns[1], chunk.map((_, row) => this.length + row));
        this.putLong(columns[2], chunk.map(() => 0));
        this.put(this.rows, columns);
        this.putLong(this.rows + 16, [chunk.length, chunk.length - wanted]);
        const error = this.calls.minigpt_read(this.model, this.rows, this.logits ?? 0);
        if (error) throw new Error(ERRORS[error]);
        this.length += chunk.length;
        if (all) found.set(new Float32Array(this.calls.memory.buffer, this.logits, wanted * v), begin * v);
      }
      return found ?? new Float32Array(this.calls.memory.buffer, this.logits, v);
    }
  }

  /** An instance of a module for a model of this size; null where the module is not valid. */
  function instantiate(bytes) {
    if (typeof WebAssembly === "undefined" || !WebAssembly.validate(bytes)) return null;
    return new WebAssembly.Instance(new WebAssembly.Module(bytes), {});
  }

  return { WasmModel, instantiate };
})();
