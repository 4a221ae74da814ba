"use strict";

/** Runs the model beside the page, so that typing stays smooth. Messages are { type, … }. */
(() => {
  const FRAME = 15; // milliseconds between messages to the page
  let writer, running = 0, labels;

  async function open({ texts, length }) {
    const { header, tensor } = await payload.read(texts, length, (done) => postMessage({ type: "progress", done }));
    const { model, arithmetic } = generation.openModel(header, tensor);
    writer = new generation.Writer(model, new tokenizing.Tokenizer(header.tokenizer));
    labels = [];
    postMessage({ type: "ready", arithmetic });
  }

  /** Lets messages in, such as a stop, without the delay of a timer. */
  const breathe = () => new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = resolve;
    port2.postMessage(null);
  });

  /** Continues `prompt`, then the tokens `kept`, up to `settings.count` tokens in all. */
  async function write({ prompt, kept, settings }) {
    const number = ++running;
    const tokens = [...writer.encode(prompt), ...kept];
    const decode = writer.tokenizer.decoder();
    const isEndOf = (id) => id === writer.tokenizer.endOfText;
    if (kept.length) postMessage({ type: "kept", texts: kept.map((id) => [isEndOf(id) ? "" : decode(id), isEndOf(id)]) });
    const label = (id) => (labels[id] ??= writer.tokenizer.decode([id]));
    let reason = "length", written = [], sent = performance.now();
    for (let step = kept.length; step < settings.count; step++) {
      const { id, probability, alternatives } = writer.next(tokens, step, settings);
      const isEnd = isEndOf(id);
      written.push({
        id, probability, isEnd, text: isEnd ? "" : decode(id),
        alternatives: alternatives.map(([other, share]) => [other, share, label(other)]),
      });
      tokens.push(id);
      if (isEnd) { reason = "end"; break; }
      if (performance.now() - sent < FRAME) continue;
      postMessage({ type: "tokens", tokens: written });
      await breathe();
      if (number !== running) return;
      written = [];
      sent = performance.now();
    }
    if (written.length) postMessage({ type: "tokens", tokens: written });
    postMessage({ type: "done", reason, rest: decode() });
  }

  onmessage = async ({ data }) => {
    try {
      if (data.type === "open") await open(data);
      if (data.type === "write") await write(data);
      if (data.type === "stop") {
        running++;
        postMessage({ type: "done", reason: "stop", rest: "" });
      }
    } catch (error) {
      postMessage({ type: "error", message: error.message });
    }
  };
})();
