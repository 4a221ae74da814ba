"use strict";

/** Runs the model beside the page, so that typing stays smooth. Messages are { type, … }. */
(() => {
  const FRAME = 15; // milliseconds between messages to the page
  let reader, tokenizer, writer, running = 0, asked = 0; // the numbers of the text that is written, of the last question

  async function open() {
    const { header, tensor } = await reader.end();
    const { model, arithmetic } = generation.openModel(header, tensor);
    writer = new generation.Writer(model, tokenizer);
    postMessage({ type: "ready", arithmetic, vocabulary: vocabulary() });
  }

  /** The tokens for the page: all bytes in one array, where those of each token end, and which are special. */
  function vocabulary() {
    const { bytes, special } = tokenizer, ends = new Uint32Array(bytes.length);
    let length = 0;
    bytes.forEach((each, id) => { ends[id] = length += each.length; });
    const all = new Uint8Array(length);
    bytes.forEach((each, id) => all.set(each, ends[id] - each.length));
    return { bytes: all, ends, special: [...special] };
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
    const text = writer.start(prompt, kept);
    postMessage({ type: "prompt", run, ids: text.tokens.slice(0, text.tokens.length - kept.length), healed: text.healed });
    let reason = "length", written = [], sent = performance.now();
    while (text.generated < settings.count) {
      const token = writer.next(text, settings);
      written.push(token);
      if (tokenizer.ends.has(token.id)) { reason = "end"; break; }
      if (performance.now() - sent < FRAME) continue;
      postMessage({ type: "tokens", run, tokens: written });
      await breathe();
      if (run !== running) return;
      written = [];
      sent = performance.now();
    }
    running = 0;
    if (written.length) postMessage({ type: "tokens", run, tokens: written });
    postMessage({ type: "done", run, reason });
  }

  /** Sends the attention weights of the last of these tokens. Tokens that are no longer in the cache are read again, but
   * not while a text is written: it comes first. */
  async function explain({ question, ids }) {
    asked = question;
    const seen = writer.seen(ids);
    while (running === 0 && !writer.readSome(seen)) {
      await breathe();
      if (question !== asked) return;
    }
    const isKnown = writer.known(seen) === seen.length;
    postMessage({ type: "attention", question, seen, weights: isKnown ? writer.attention(seen) : null });
  }

  const receive = {
    start({ length }) {
      const onProgress = (done) => postMessage({ type: "progress", done });
      reader = payload.newReader(length, onProgress, (header) => {
        tokenizer = new tokenizing.Tokenizer(header.tokenizer); // while the weights are still to come
      });
    },
    part({ texts }) { texts.forEach(reader.feed); },
    end: open,
    write,
    stop({ run }) {
      if (run === running) running = 0;
      postMessage({ type: "done", run, reason: "stop" });
    },
    explain,
  };

  onmessage = async ({ data }) => {
    try {
      await receive[data.type](data);
    } catch (error) {
      running = 0;
      postMessage({ type: "error", message: error.message });
    }
  };
})();
