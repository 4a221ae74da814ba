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

  /** The ids of the k largest values, largest first, of equal ones the lower id first. */
  function largest(values, k) {
    if (k >= values.length) return Array.from(values.keys()).sort((a, b) => values[b] - values[a] || a - b);
    const heap = []; // the last of the k so far is on top
    const after = (a, b) => values[a] < values[b] || (values[a] === values[b] && a > b);
    const sink = (at) => {
      for (;;) {
        let child = 2 * at + 1;
        if (child >= heap.length) return;
        if (child + 1 < heap.length && after(heap[child + 1], heap[child])) child++;
        if (!after(heap[child], heap[at])) return;
        [heap[at], heap[child]] = [heap[child], heap[at]];
        at = child;
      }
    };
    for (let id = 0; id < k; id++) heap.push(id);
    for (let at = k >> 1; at >= 0; at--) sink(at);
    for (let id = k; id < values.length; id++) {
      if (values[id] > values[heap[0]]) {
        heap[0] = id;
        sink(0);
      }
    }
    return heap.sort((a, b) => values[b] - values[a] || a - b);
  }

  /** The probabilities of logits, in float32. */
  function softmax(logits) {
    let highest = -Infinity;
    for (const logit of logits) if (logit > highest) highest = logit;
    const result = new Float32Array(logits.length);
    let total = 0;
    for (let i = 0; i < logits.length; i++) total += (result[i] = Math.exp(Math.fround(logits[i] - highest)));
    for (let i = 0; i < result.length; i++) result[i] /= total;
    return result;
  }

  /** The number of ordered candidates that the truncations keep; `mass` is their share of the probability. */
  function countKept(kept, mass, settings) {
    let count = kept.length;
    if (settings.topK) {
      const kth = kept[Math.min(settings.topK, count) - 1];
      while (kept[count - 1] < kth) count--;
      mass = 1;
    }
    if (settings.topP < 1) {
      const probability = softmax(kept.subarray(0, count));
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
  function candidates(logits, settings) {
    if (!settings.topK && settings.topP >= 1 && !(settings.minP > 0)) {
      return { ids: null, probability: softmax(logits) };
    }
    const all = settings.topP < 1 && !settings.topK ? softmax(logits) : null;
    for (let k = settings.topK ? settings.topK + 1 : FIRST_K; ; k *= 16) {
      const ids = largest(logits, Math.min(k, logits.length));
      const kept = Float32Array.from(ids, (id) => logits[id]);
      const mass = all ? ids.reduce((sum, id) => sum + all[id], 0) : 1;
      const count = countKept(kept, mass, settings);
      if (count < ids.length || ids.length === logits.length) {
        return { ids, probability: softmax(kept.subarray(0, count)) };
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

  function argmax(values) {
    let best = 0;
    for (let id = 1; id < values.length; id++) if (values[id] > values[best]) best = id;
    return best;
  }

  /** The next token after `history`, which has `step` generated tokens; `unused` ids are never chosen.
   *
   * settings: temperature, topK (or null), topP, minP, repetitionPenalty, seed. `logits` is not changed. */
  function choose(logits, history, step, settings, unused = []) {
    const scores = logits.slice();
    const penalty = settings.repetitionPenalty;
    if (penalty !== 1) {
      for (const id of new Set(history)) scores[id] = logits[id] < 0 ? logits[id] * penalty : logits[id] / penalty;
    }
    for (const id of unused) scores[id] = -Infinity;
    const best = argmax(scores);
    if (!Number.isFinite(scores[best])) throw new Error("the model's logits are not finite");
    if (settings.temperature === 0) return best;
    const highest = scores[best], temperature = Math.fround(Math.max(settings.temperature, 1e-30));
    for (let id = 0; id < scores.length; id++) scores[id] = Math.fround(scores[id] - highest) / temperature;
    const { ids, probability } = candidates(scores, settings);
    const index = draw(probability, uniform(settings.seed, 0, step));
    return ids ? ids[index] : index;
  }

  return { choose, uniform, largest, softmax };
})();
