"use strict";

/** Chooses the next token from logits with the steps, and for a seed the random numbers, of minigpt/generation. */
const sampling = (() => {
  const MASK = (1n << 64n) - 1n;
  const FIRST_K = 640; // candidates that truncations look at first

  /** A number in [0, 1) that depends only on these integers (splitmix64; minigpt/seeds.py). */
  function uniform(seed, sample, step) {
    let state = 0n;
    for (const part of [seed, sample, step]) {
      state = ((state ^ (BigInt(part) & MASK)) + 0x9E3779B97F4A7C15n) & MASK;
      state = ((state ^ (state >> 30n)) * 0xBF58476D1CE4E5B9n) & MASK;
      state = ((state ^ (state >> 27n)) * 0x94D049BB133111EBn) & MASK;
      state ^= state >> 31n;
    }
    return Number(state >> 11n) * 2 ** -53;
  }

  const bits = new Int32Array(1), float = new Float32Array(bits.buffer);
  const IDS = 2 ** 21; // more than any vocabulary has

  /** A number by which ids are sorted: that of the largest value first, of equal ones the lowest id. */
  function sortKey(value, id) {
    float[0] = value + 0; // -0 becomes 0
    return id - IDS * (bits[0] < 0 ? bits[0] ^ 0x7fffffff : bits[0]); // floats of one sign have the order of their bits
  }

  /** The ids of the k largest values, in the order of their keys. */
  function largest(values, k) {
    const heap = new Float64Array(Math.min(k, values.length)); // the last of the k so far is on top
    const sink = (start) => {
      const sinking = heap[start];
      let at = start;
      for (let child = 2 * at + 1; child < heap.length; child = 2 * at + 1) {
        if (child + 1 < heap.length && heap[child + 1] > heap[child]) child++;
        if (heap[child] <= sinking) break;
        heap[at] = heap[child];
        at = child;
      }
      heap[at] = sinking;
    };
    for (let id = 0; id < heap.length; id++) heap[id] = sortKey(values[id], id);
    if (heap.length < values.length) {
      for (let at = heap.length >> 1; at >= 0; at--) sink(at);
      const idOnTop = () => heap[0] - Math.floor(heap[0] / IDS) * IDS;
      let least = values[idOnTop()];
      for (let id = heap.length; id < values.length; id++) {
        if (values[id] > least) {
          heap[0] = sortKey(values[id], id);
          sink(0);
          least = values[idOnTop()];
        }
      }
    }
    return Array.from(heap.sort(), (key) => key - Math.floor(key / IDS) * IDS);
  }

  function argmax(values) {
    let best = 0;
    for (let id = 1; id < values.length; id++) if (values[id] > values[best]) best = id;
    return best;
  }

  /** The probabilities of some ids; `model` computes the exponentials. */
  function probabilities(logits, ids, model) {
    const highest = logits[argmax(logits)], total = model.exponentials(logits.slice(), highest);
    return ids.map((id) => Math.exp(logits[id] - highest) / total);
  }

  /** The probabilities of logits, in float32. */
  function softmax(logits, model) {
    const result = logits.slice(), total = model.exponentials(result, logits[argmax(logits)]);
    for (let i = 0; i < result.length; i++) result[i] /= total;
    return result;
  }

  /** The number of ordered candidates that the truncations keep; `mass` is their share of the probability. */
  function countKept(kept, mass, settings, model) {
    let count = kept.length;
    if (settings.topK) {
      const kth = kept[Math.min(settings.topK, count) - 1];
      while (kept[count - 1] < kth) count--;
      mass = 1;
    }
    if (settings.topP < 1) {
      const probability = softmax(kept.subarray(0, count), model);
      let before = 0, last = 0;
      for (let i = 0; i < count && before < settings.topP / mass; before += probability[i++]) last = i;
      while (kept[count - 1] < kept[last]) count--;
    }
    if (settings.minP > 0) {
      const least = Math.fround(kept[0] + Math.fround(Math.log(settings.minP)));
      while (kept[count - 1] < least) count--;
    }
    return count;
  }

  /** The tokens that may be drawn, and their probabilities. */
  function candidates(logits, settings, model) {
    if (!settings.topK && settings.topP >= 1 && !(settings.minP > 0)) {
      return { ids: null, probability: softmax(logits, model) };
    }
    const all = settings.topP < 1 && !settings.topK ? softmax(logits, model) : null;
    for (let k = settings.topK ? settings.topK + 1 : FIRST_K; ; k *= 16) {
      const ids = largest(logits, Math.min(k, logits.length));
      const kept = Float32Array.from(ids, (id) => logits[id]);
      const mass = all ? ids.reduce((sum, id) => sum + all[id], 0) : 1;
      const count = countKept(kept, mass, settings, model);
      // If the last candidate ties with the last one of top-k, more tokens may tie, and top-p after it counts them all.
      const last = kept[ids.length - 1];
      const tied = settings.topK && last > -Infinity && last === kept[Math.min(settings.topK, ids.length) - 1];
      if ((count < ids.length && !tied) || ids.length === logits.length) {
        return { ids, probability: softmax(kept.subarray(0, count), model) };
      }
    }
  }

  /** The index at which the cumulative distribution passes a number in [0, 1): units of 2**-52 add up exactly. */
  function draw(probability, number) {
    let total = 0;
    for (const p of probability) total += Math.floor(p * 2 ** 52);
    const target = Math.floor(number * total);
    let sum = 0;
    return probability.findIndex((p) => (sum += Math.floor(p * 2 ** 52)) > target);
  }

  /** The logits with -infinity for the ids in these lists. */
  function without(logits, ...banned) {
    const allowed = logits.slice();
    for (const ids of banned) for (const id of ids) allowed[id] = -Infinity;
    return allowed;
  }

  let scores = new Float32Array();

  /** The next token after `history`, which has `step` generated tokens; `banned`, lists of ids, are never chosen.
   *
   * settings: temperature, topK (or null), topP, minP, repetitionPenalty, seed. `model` computes exponentials. */
  function choose(model, logits, history, step, settings, ...banned) {
    if (scores.length !== logits.length) scores = new Float32Array(logits.length);
    scores.set(logits);
    const penalty = settings.repetitionPenalty;
    if (penalty !== 1) {
      for (const id of new Set(history)) scores[id] = logits[id] < 0 ? logits[id] * penalty : logits[id] / penalty;
    }
    for (const ids of banned) for (const id of ids) scores[id] = -Infinity;
    const best = argmax(scores);
    if (!Number.isFinite(scores[best])) throw new Error("the model's logits are not finite");
    if (settings.temperature === 0) return best;
    const highest = scores[best], temperature = Math.fround(Math.min(Math.max(settings.temperature, 1e-30), 1e30));
    for (let id = 0; id < scores.length; id++) scores[id] = Math.fround(scores[id] - highest) / temperature;
    const { ids, probability } = candidates(scores, settings, model);
    const index = draw(probability, uniform(settings.seed, 0, step));
    return ids ? ids[index] : index;
  }

  return { choose, uniform, largest, probabilities, without };
})();
