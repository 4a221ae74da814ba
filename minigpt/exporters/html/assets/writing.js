"use strict";

/** The page: it gives the model to the worker while it is being loaded, sends what is to be continued, and shows what
 * comes. */
const writing = (() => {
  const { data, make, main, start } = page;
  const find = (id) => document.getElementById(id);
  const status = (text) => { find("status").textContent = text; };
  const ARITHMETIC = { relaxed: "WebAssembly, relaxed SIMD", simd: "WebAssembly, SIMD",
    plain: "plain JavaScript, which is slow: this browser has no WebAssembly with SIMD" };
  const REASONS = { length: "complete", end: "the text ended", stop: "stopped" };
  // name: label, minimum, maximum, initial value; the default values are those of `minigpt generate`.
  const SETTINGS = {
    count: ["Tokens to write", 1, 100000, 200], temperature: ["Temperature", 0, 100, 0.8],
    topP: ["Top-p", 0.000001, 1, 0.95], seed: ["Seed", 0, Number.MAX_SAFE_INTEGER, "", "random"],
    topK: ["Top-k", 1, 1000000, "", "all"], minP: ["Min-p", 0, 1, 0],
    repetitionPenalty: ["Repetition penalty", 0.01, 100, 1],
  };
  const BASIC = ["count", "temperature", "topP", "seed"];

  start(data.title);
  main.append(find("writing").content);
  find("requirement").remove(); // an old browser, which does not know this script's syntax, shows it
  const inputs = {};
  for (const [name, [label, min, max, value, placeholder]] of Object.entries(SETTINGS)) {
    const step = ["count", "topK", "seed"].includes(name) ? 1 : "any";
    inputs[name] = make("input", { type: "number", id: `setting-${name}`, min, max, value, step, placeholder });
    inputs[name].required = value !== "";
    const target = BASIC.includes(name) ? find("basic") : find("settings").querySelector(".fields");
    target.append(make("label", {}, label, inputs[name]));
  }
  find("note").textContent = data.note;
  find("note").hidden = data.note === "";
  find("prompt").value = data.prompt;
  find("facts").textContent = `${data.parameters.toLocaleString("en")} parameters, a context of ${data.context} tokens,`
    + ` a vocabulary of ${data.vocabulary.toLocaleString("en")} tokens; weights in int8.`;

  // The text that is shown, its card, the branch that is written (or null), and what the worker was asked.
  const shown = { tree: null, card: null, branch: null, run: 0, began: 0, question: 0, place: null, index: 0 };
  let worker = null, vocabulary = null;

  // Tokens

  /** A token as reading.js has it. */
  function token(id, probability = 1) {
    const bytes = vocabulary.bytes.subarray(vocabulary.ends[id - 1] ?? 0, vocabulary.ends[id]);
    const isSpecial = vocabulary.special.includes(id);
    return {
      id, token: isSpecial ? new TextDecoder().decode(bytes) : "", bytes: isSpecial ? null : [...bytes],
      logprob: Math.log(probability),
    };
  }

  const written = ({ id, probability, alternatives }) => ({
    ...token(id, probability),
    get alternatives() { return alternatives.map((each) => token(...each)); }, // most are never looked at
  });

  // Writing

  function begin() {
    const seed = inputs.seed.value === "" ? newSeed() : Number(inputs.seed.value);
    end("stopped");
    shown.tree = branches.newTree(data.title, find("prompt").value, seed, 0);
    shown.card = newCard(shown.tree, "Text", actions);
    find("texts").replaceChildren(shown.card.element, page.likelihoodLegend());
    write();
  }

  const newSeed = () => crypto.getRandomValues(new Uint32Array(1))[0];

  /** Continues the current branch. With its seed, the tokens are those of a longer text from the beginning. */
  function write() {
    const { tree, card } = shown, branch = tree.current, number = (name) => Number(inputs[name].value);
    const kept = branches.path(branch).map(({ id }) => id);
    end("stopped");
    Object.assign(branch, { state: "writing", error: "", wrote: 0, seconds: 0 });
    Object.assign(shown, { branch, run: shown.run + 1, began: performance.now() });
    worker.postMessage({ type: "write", run: shown.run, prompt: tree.prompt, kept, settings: {
      count: kept.length + number("count"), temperature: number("temperature"),
      topK: inputs.topK.value === "" ? null : number("topK"), topP: number("topP"), minP: number("minP"),
      repetitionPenalty: number("repetitionPenalty"), seed: branch.seed,
    } });
    status("Writing …");
    buttons();
    card.update();
  }

  /** Ends the branch that is written, if one is. */
  function end(state, error = "") {
    const { branch } = shown;
    if (branch === null) return;
    Object.assign(branch, { state, error, seconds: (performance.now() - shown.began) / 1000 });
    shown.branch = null;
    buttons();
    shown.card.update();
    if (shown.place !== null) ask(); // it may have waited for the end
  }

  function buttons() {
    find("stop").hidden = shown.branch === null;
    find("continue").disabled = worker === null || vocabulary === null || shown.branch !== null;
  }

  function stop() {
    if (shown.branch !== null) worker.postMessage({ type: "stop", run: shown.run });
  }

  /** Whether the settings are valid; if not, the browser says why. */
  function isValid() {
    return find("form").reportValidity();
  }

  const actions = {
    /** Writes on from a token; another token than the current one may have a branch, which is shown then. */
    branch(tree, index, chosen) {
      const { card } = shown, known = branches.existing(tree, index, chosen.id);
      if (known !== undefined && known !== tree.current) {
        tree.current = known;
        card.draw();
      } else {
        if (!isValid()) return;
        // Another token writes on with the same random numbers, the same token with others.
        branches.leave(tree, index, chosen, known === undefined ? tree.current.seed : newSeed());
        card.draw();
        write();
      }
      card.focusAt(index);
    },
    more(tree) {
      if (!isValid()) return;
      tree.current.state = "writing";
      shown.card.draw(); // the first bytes of a character are no longer the end
      write();
    },
    edit(text) {
      find("prompt").value = text;
      find("prompt").focus();
    },
    keepSeed(seed) {
      inputs.seed.value = seed;
      status(`The next texts have the seed ${seed}.`);
    },
    tell: status,
    explain(tree, index) {
      if (!data.showsAttention) {
        return make("p", { class: "muted" }, "This page shows attention for models of up to 150 million parameters;"
          + " minigpt inspect shows that of larger ones.");
      }
      shown.place = make("div", {}, make("p", { class: "muted" }, "Attention is shown when the text is complete."));
      shown.index = index;
      ask();
      return shown.place;
    },
  };

  /** Asks for the attention of the token that was chosen last. */
  function ask() {
    const { tree, index } = shown, tokens = branches.path(tree.current).slice(0, index + 1);
    shown.asked = [...tree.promptIds, ...tokens.map(({ id }) => id)];
    worker.postMessage({ type: "explain", question: ++shown.question, ids: shown.asked });
  }

  listenToForm({ begin, stop });

  // The worker

  const receive = {
    progress: ({ done }) => status(`Opening the model: ${Math.floor(done * 100)} %`),
    ready(message) {
      ({ vocabulary } = message);
      status(`Ready (${ARITHMETIC[message.arithmetic]}).`);
      document.body.dataset.ready = String(Math.round(performance.now()));
      buttons();
    },
    prompt({ ids, healed }) {
      const { tree, card } = shown, isNew = tree.promptIds === null;
      Object.assign(tree, { promptIds: ids, healed });
      if (isNew && healed > 0) card.draw();
    },
    tokens({ tokens }) {
      const { branch, tree, card } = shown;
      if (branch === null) return;
      const added = tokens.map(written);
      branch.tokens.push(...added);
      branch.wrote += added.length;
      if (branch === tree.current) card.add(added);
    },
    done({ reason }) {
      if (shown.branch === null) return;
      end(REASONS[reason]);
      status(reason === "stop" ? "Stopped." : "Done.");
    },
    attention({ question, seen, weights }) {
      if (question !== shown.question || weights === null) return;
      shown.place.replaceChildren(attending.view(seen.map((id) => token(id)), data.heads, weights, shown.asked.length - seen.length));
      shown.place = null;
    },
    error({ message }) {
      end("failed", `${message}.`);
      status(`The model could not run: ${message}.`);
    },
  };

  function open() {
    if (typeof DecompressionStream === "undefined") {
      return status("This browser is too old for this page: it lacks DecompressionStream. A current Firefox, Chrome,"
        + " Edge or Safari opens it.");
    }
    if (typeof Worker === "undefined") return status("This browser does not let this page run a worker, which it needs.");
    status("Opening the model …");
    const code = ["engine", "worker"].map((id) => find(id).textContent);
    worker = new Worker(URL.createObjectURL(new Blob(code, { type: "text/javascript" })));
    worker.onerror = (event) => status(`The model could not run: ${event.message || "the browser refused the worker"}.`);
    worker.onmessage = ({ data: message }) => {
      if (message.run === undefined || message.run === shown.run) receive[message.type](message);
    };
    worker.postMessage({ type: "start", length: data.length });
    document.addEventListener("DOMContentLoaded", () => worker.postMessage({ type: "end" }));
    return undefined;
  }

  open();

  /** Gives the worker the part of the model that the browser has just read. */
  function take() {
    const elements = [...document.querySelectorAll(".weights")];
    worker?.postMessage({ type: "part", texts: elements.map((element) => element.textContent) });
    for (const element of elements) element.remove();
  }

  return { take };
})();
