"use strict";

/** Runs the model beside the page, so that typing stays smooth. Messages are { type, … }. */
(() => {
  const FRAME = 15; // milliseconds between messages to the page
  let writer, running = 0, labels; // `running` is the number of the text that is written

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
  async function write({ run, prompt, kept, settings }) {
    running = run;
    const text = writer.start(prompt, kept), decode = writer.tokenizer.decoder();
    let healed = text.end.length; // characters of the prompt that the next tokens spell again
    const show = (id) => {
      const isEnd = id === writer.tokenizer.endOfText, decoded = isEnd ? "" : decode(id);
      const shown = decoded.slice(healed);
      healed -= decoded.length - shown.length;
      return { text: shown, isEnd };
    };
    if (kept.length) postMessage({ type: "kept", run, texts: kept.map(show) });
    const label = (id) => (labels[id] ??= writer.tokenizer.decode([id]));
    let reason = "length", written = [], sent = performance.now();
    while (text.generated < settings.count) {
      const { id, probability, alternatives } = writer.next(text, settings);
      const shown = show(id);
      written.push({
        id, probability, ...shown,
        alternatives: alternatives.map(([other, share]) => [other, share, label(other)]),
      });
      if (shown.isEnd) { reason = "end"; break; }
      if (performance.now() - sent < FRAME) continue;
      postMessage({ type: "tokens", run, tokens: written });
      await breathe();
      if (run !== running) return;
      written = [];
      sent = performance.now();
    }
    if (written.length) postMessage({ type: "tokens", run, tokens: written });
    postMessage({ type: "done", run, reason });
  }

  onmessage = async ({ data }) => {
    try {
      if (data.type === "open") await open(data);
      if (data.type === "write") await write(data);
      if (data.type === "stop") {
        running = 0;
        postMessage({ type: "done", run: data.run, reason: "stop" });
      }
    } catch (error) {
      postMessage({ type: "error", message: error.message });
    }
  };
})();
