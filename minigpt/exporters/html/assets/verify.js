"use strict";

/* Run by node, not by the page: node verify.js PAGE.html, with JSON on standard input: `ids`, `texts` to tokenize,
 * perhaps `only` one arithmetic (relaxed, simd or plain), and `write`, continuations with a `prompt` and `settings`,
 * those of sampler.js and a `count`. It writes a line of JSON, then the logits after each id in float32. The line has
 * the `arithmetic`, the `attention` weights of the last id (L * H * T), and for each text its `textIds` and what they
 * `decoded` to. Of each continuation it has the ids `written`, and how many bytes of the prompt they spell again. */
const fs = require("fs");
const vm = require("vm");

(async () => {
  const page = fs.readFileSync(process.argv[2], "utf8");
  const block = (id) => page.match(new RegExp(`<script [^>]*id="${id}"[^>]*>([^]*?)</script>`))[1];
  const texts = [...page.matchAll(/class="weights">([^<]*)</g)].map((found) => found[1]);
  const { length } = JSON.parse(block("data"));
  vm.runInThisContext(block("engine"));
  const engine = vm.runInThisContext("({ payload, tokenizing, sampling, generation })");
  const asked = JSON.parse(fs.readFileSync(0, "utf8"));
  const reader = engine.payload.newReader(length);
  for (const text of texts) await reader.feed(text);
  const { header, tensor } = await reader.end();
  const { model, arithmetic } = engine.generation.openModel(header, tensor, asked.only);
  if (model === null) throw new Error("node has no WebAssembly with SIMD");
  const tokenizer = new engine.tokenizing.Tokenizer(header.tokenizer);
  // As in use: the first half at once, the others one by one.
  const half = Math.ceil(asked.ids.length / 2);
  const logits = [model.read(asked.ids.slice(0, half), true)];
  for (const id of asked.ids.slice(half)) logits.push(model.read([id]).slice());
  const attention = [...model.attention(asked.ids.at(-1), asked.ids.length - 1)];
  const answer = { arithmetic, attention, textIds: (asked.texts ?? []).map((text) => tokenizer.encode(text)), decoded: [], written: [], healed: [] };
  answer.decoded = answer.textIds.map((ids) => tokenizer.decode(ids));
  const writer = new engine.generation.Writer(model, tokenizer);
  for (const { prompt, settings } of asked.write ?? []) {
    const text = writer.start(prompt);
    answer.healed.push(text.healed);
    answer.written.push(Array.from({ length: settings.count }, () => writer.next(text, settings).id));
  }
  const rows = logits.map((row) => Buffer.from(row.buffer, row.byteOffset, row.byteLength));
  fs.writeSync(1, JSON.stringify(answer) + "\n");
  for (const row of rows) for (let at = 0; at < row.length;) at += fs.writeSync(1, row, at);
})().catch((error) => {
  process.stderr.write(`${error.message}\n`);
  process.exitCode = 1;
});
