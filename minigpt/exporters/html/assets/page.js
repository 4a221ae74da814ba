"use strict";

(() => {
  const find = (id) => document.getElementById(id);
  const data = JSON.parse(find("data").textContent);
  const status = (text) => { find("status").textContent = text; };
  const percent = (p) => p >= 0.995 ? `${(p * 100).toFixed(1)} %` : p >= 0.01 ? `${Math.round(p * 100)} %`
    : p >= 0.0001 ? `${(p * 100).toFixed(2)} %` : "under 0.01 %";

  /** An element with attributes and children; event listeners are functions. */
  function make(name, attributes = {}, ...children) {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (typeof value === "function") element.addEventListener(key, value);
      else element.setAttribute(key, value);
    }
    element.append(...children);
    return element;
  }

  // name: label, minimum, maximum, initial value; the default values are those of `minigpt generate`.
  const SETTINGS = {
    count: ["Tokens to write", 1, 100000, 200], temperature: ["Temperature", 0, 100, 0.8],
    topK: ["Top-k (empty: all)", 1, 1000000, ""], topP: ["Top-p", 0.000001, 1, 0.95], minP: ["Min-p", 0, 1, 0],
    repetitionPenalty: ["Repetition penalty", 0.01, 100, 1], seed: ["Seed (empty: random)", 0, Number.MAX_SAFE_INTEGER, ""],
  };
  const inputs = {};
  for (const [name, [label, min, max, value]] of Object.entries(SETTINGS)) {
    const whole = ["count", "topK", "seed"].includes(name);
    inputs[name] = make("input", { type: "number", min, max, value, step: whole ? 1 : "any", id: `setting-${name}` });
    if (value !== "") inputs[name].required = true;
    find("settings").lastElementChild.append(make("label", {}, label, inputs[name]));
  }

  find("title").textContent = data.title;
  find("note").textContent = data.note;
  find("note").hidden = data.note === "";
  find("prompt").value = data.prompt;
  find("facts").textContent = `${data.parameters.toLocaleString("en")} parameters, a context of ${data.context} tokens,`
    + ` a vocabulary of ${data.vocabulary.toLocaleString("en")} tokens; weights in int8.`;

  // `run` is the number of the text that is written; messages about an earlier one are ignored.
  const state = { run: 0, prompt: "", tokens: [], running: false, pinned: false, shown: -1, seed: "0", began: 0, before: 0 };

  // Writing

  function settings(count) {
    const number = (name) => Number(inputs[name].value);
    return {
      count, temperature: number("temperature"), topK: inputs.topK.value === "" ? null : number("topK"),
      topP: number("topP"), minP: number("minP"), repetitionPenalty: number("repetitionPenalty"), seed: state.seed,
    };
  }

  /** Writes on after the first `kept` tokens. */
  function write(kept, count) {
    if (!find("form").checkValidity()) {
      find("settings").setAttribute("open", "");
      find("form").reportValidity();
      return;
    }
    state.tokens.length = kept;
    state.running = true;
    state.began = performance.now();
    state.before = kept;
    drawAll();
    buttons();
    status("Writing …");
    state.run++;
    state.worker.postMessage({
      type: "write", run: state.run, prompt: state.prompt, kept: state.tokens.map((token) => token.id), settings: settings(count),
    });
  }

  function begin() {
    state.prompt = find("prompt").value;
    state.seed = inputs.seed.value || String(crypto.getRandomValues(new Uint32Array(1))[0]);
    hidePanel();
    write(0, Number(inputs.count.value));
  }

  const more = () => write(state.tokens.length, state.tokens.length + Number(inputs.count.value));
  const stop = () => state.worker.postMessage({ type: "stop", run: state.run });

  /** Writes another text from token `index` on, which is replaced by this alternative. */
  function branch(index, [id, probability]) {
    const count = Math.max(state.tokens.length, index + 1 + Number(inputs.count.value));
    state.tokens[index] = { ...state.tokens[index], id, probability };
    hidePanel();
    write(index + 1, count);
    if (state.tokens.length) elements[index].focus();
  }

  function buttons() {
    const { running } = state, has = state.tokens.length > 0;
    find("write").disabled = running;
    find("stop").hidden = !running;
    find("result").hidden = !has && !running;
    for (const id of ["more", "edit", "copy"]) find(id).hidden = running || !has;
    find("text").setAttribute("aria-busy", String(running));
  }

  function finish(reason) {
    if (!state.running) return;
    state.running = false;
    const wrote = state.tokens.length - state.before, seconds = (performance.now() - state.began) / 1000;
    const why = { end: "The text ended", stop: "Stopped", length: "Done" }[reason];
    status(`${why}: ${wrote} tokens, ${Math.round(wrote / seconds).toLocaleString("en")} tokens/s, seed ${state.seed}.`);
    buttons();
  }

  // The text

  let elements = [];
  const text = () => state.prompt + state.tokens.map((token) => token.text).join("");

  function drawAll() {
    elements = [];
    find("text").replaceChildren(state.prompt);
    state.tokens.forEach(draw);
  }

  /** Appends a token, colored by its surprisal: up to 10 bits. */
  function draw(token, index) {
    const label = token.isEnd ? "end of text" : token.text;
    const element = make("span", {
      class: token.isEnd ? "token end" : "token", role: "button", tabindex: index === 0 ? 0 : -1, "aria-pressed": "false",
      "aria-label": `${label}, probability ${percent(token.probability)}`,
      click: () => show(index, true), focus: () => rove(index),
      pointerenter: (event) => { if (event.pointerType === "mouse" && !state.pinned) show(index, false); },
    }, token.isEnd ? " ⏹ end of text" : token.text);
    const bits = Math.min(10, -Math.log2(Math.max(token.probability, 1e-9)));
    element.style.backgroundColor = `color-mix(in srgb, var(--unlikely) ${Math.round(bits * 7)}%, transparent)`;
    elements[index] = element;
    find("text").append(element);
  }

  function rove(index) {
    elements.forEach((element, other) => element.setAttribute("tabindex", other === index ? 0 : -1));
  }

  /** Shows the most likely tokens at the place of a token. */
  function show(index, pinned) {
    state.pinned = pinned;
    state.shown = index;
    elements.forEach((element, other) => element.setAttribute("aria-pressed", String(other === index)));
    const token = state.tokens[index];
    const list = make("ul");
    for (const alternative of token.alternatives) {
      const [id, probability, label] = alternative;
      const button = make("button", { type: "button", click: () => branch(index, alternative) },
        visible(label), " ", make("small", {}, percent(probability)));
      if (id === token.id) button.setAttribute("aria-current", "true");
      list.append(make("li", {}, button));
    }
    find("token").replaceChildren(
      make("p", { class: "muted" }, `This token had a probability of ${percent(token.probability)}. Most likely here;`
        + " choose one to write on from it:"), list);
    find("token").hidden = false;
  }

  function hidePanel() {
    state.pinned = false;
    state.shown = -1;
    find("token").hidden = true;
    elements.forEach((element) => element.setAttribute("aria-pressed", "false"));
  }

  /** A token with its white space and control characters made visible. */
  const visible = (label) => label.replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll(" ", "␣")
    .replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, (c) => `<U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}>`);

  // Events

  find("form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!find("write").disabled) begin();
  });
  find("stop").addEventListener("click", stop);
  find("more").addEventListener("click", more);
  find("edit").addEventListener("click", () => { find("prompt").value = text(); find("prompt").focus(); });
  find("copy").addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text());
      status("Copied.");
    } catch {
      getSelection().selectAllChildren(find("text"));
      status("The browser does not let this page copy; the text is selected instead.");
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && state.running) stop();
    else if (event.key === "Escape") hidePanel();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) find("form").requestSubmit();
  });
  find("text").addEventListener("keydown", (event) => {
    const at = elements.indexOf(document.activeElement), last = elements.length - 1;
    const target = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last }[event.key];
    if (at >= 0 && target !== undefined) elements[Math.min(last, Math.max(0, target))].focus();
    else if (at >= 0 && (event.key === "Enter" || event.key === " ")) show(at, true);
    else return;
    event.preventDefault();
  });

  // The worker

  const ARITHMETIC = { relaxed: "WebAssembly, relaxed SIMD", simd: "WebAssembly, SIMD",
    plain: "plain JavaScript, which is slow: this browser has no WebAssembly with SIMD" };
  const receive = {
    progress: ({ done }) => status(`Opening the model: ${Math.floor(done * 100)} %`),
    ready: ({ arithmetic }) => {
      status(`Ready (${ARITHMETIC[arithmetic]}).`);
      document.body.dataset.ready = String(Math.round(performance.now()));
      for (const id of ["engine", "worker"]) find(id).remove();
      buttons();
    },
    kept: ({ texts }) => {
      texts.forEach((shown, index) => Object.assign(state.tokens[index], shown));
      drawAll();
    },
    tokens: ({ tokens }) => {
      if (!state.running) return;
      for (const token of tokens) draw(token, state.tokens.push(token) - 1);
    },
    done: ({ reason }) => finish(reason),
    error: ({ message }) => {
      state.running = false;
      status(`The model could not run: ${message}.`);
    },
  };

  if (typeof DecompressionStream === "undefined") {
    return status("This browser is too old for this page: it lacks DecompressionStream. A current Firefox, Chrome, Edge"
      + " or Safari opens it.");
  }
  if (typeof Worker === "undefined") return status("This browser does not let this page run a worker, which it needs.");
  status("Opening the model …");
  const code = ["engine", "worker"].map((id) => find(id).textContent);
  state.worker = new Worker(URL.createObjectURL(new Blob(code, { type: "text/javascript" })));
  state.worker.onerror = (event) => status(`The model could not run: ${event.message || "the browser refused the worker"}.`);
  state.worker.onmessage = ({ data: message }) => {
    if (message.run === undefined || message.run === state.run) receive[message.type](message);
  };
  const weights = [...document.querySelectorAll(".weights")];
  state.worker.postMessage({
    type: "open", texts: weights.map((element) => element.textContent), length: Number(find("data").dataset.length),
  });
  weights.forEach((element) => element.remove());
  return undefined;
})();
