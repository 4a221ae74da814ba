"use strict";

/** Runs the model beside the page, so that typing stays smooth. Messages are { type, … }. */
(() => {
  let writer, running = 0;

  async function open({ texts, length }) {
    const { header, tensor } = await payload.read(texts, length, (done) => postMessage({ type: "progress", done }));
    const { model, arithmetic } = generation.openModel(header, tensor);
    writer = new generation.Writer(model, new tokenizing.Tokenizer(header.tokenizer));
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
    const label = (id) => writer.tokenizer.decode([id]);
    let reason = "length";
    for (let step = kept.length; step < settings.count; step++) {
      const { id, probability, alternatives } = writer.next(tokens, step, settings);
      if (number !== running) return;
      const isEnd = isEndOf(id);
      postMessage({
        type: "token", number, id, probability, isEnd, text: isEnd ? "" : decode(id),
        alternatives: alternatives.map(([other, share]) => [other, share, label(other)]),
      });
      tokens.push(id);
      if (isEnd) { reason = "end"; break; }
      await breathe();
      if (number !== running) return;
    }
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
