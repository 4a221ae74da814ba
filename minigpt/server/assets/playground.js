"use strict";

/** The playground: asks for the models, sends what is to be continued, and shows what comes. */
(() => {
  const { make, main, start } = page;
  const find = (id) => document.getElementById(id);
  const ALTERNATIVES = 10; // at each token
  const RETRY = 1000; // milliseconds, while the models are being loaded
  const running = new Set(); // an AbortController for each request
  let cards = [], models = [];

  start("minigpt");
  main.append(find("playground").content);
  const status = (text) => { find("status").textContent = text; };

  // The models

  async function loadModels() {
    try {
      models = (await api.ask("v1/models")).data;
    } catch (error) {
      if (error.status === 401) return askForKey();
      if (error.status === 503) {
        status("The server is loading its models …");
        setTimeout(loadModels, RETRY);
        return undefined;
      }
      return status(`There are no models to choose from: ${error.message}.`);
    }
    find("key-form").hidden = true;
    find("models").hidden = false;
    const options = () => models.map(({ id }) => make("option", { value: id }, id));
    find("model").replaceChildren(...options());
    find("other").replaceChildren(make("option", { value: "" }, "no other model"), ...options());
    find("other").closest("label").hidden = models.length < 2;
    find("continue").disabled = false;
    status("");
    document.body.dataset.ready = "true";
    return undefined;
  }

  function askForKey() {
    find("key-note").textContent = find("key").value === ""
      ? "The page keeps it until you close or reload it, and stores it nowhere." : "The server refuses this key.";
    find("key-form").hidden = false;
    find("key").focus();
    status("");
  }

  find("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    api.useKey(find("key").value);
    loadModels();
  });

  // Writing

  /** Continues the prompt: every chosen model, from the same seed. The texts before come back if all of them fail. */
  async function begin() {
    const { n, ...fields } = settings.fields();
    const prompt = find("prompt").value;
    const chosen = [find("model").value, find("other").value].filter((name, index) => index === 0 || name !== "");
    const seed = settings.seed();
    const trees = chosen.map((model) => (
      Array.from({ length: n }, (_, sample) => branches.newTree(model, prompt, seed, sample))));
    const before = { shown: cards, layout: find("texts").className };
    const started = [];
    for (let sample = 0; sample < n; sample++) {
      chosen.forEach((model, index) => {
        const name = n > 1 ? `Text ${sample + 1}` : chosen.length > 1 ? "" : "Text";
        const title = [name, chosen.length > 1 ? model : ""].filter(Boolean).join(" · ");
        started.push(newCard(trees[index][sample], title, actions));
      });
    }
    showCards(started, `texts ${started.length > 2 && chosen.length === 1 ? "many" : started.length > 1 ? "two" : ""}`);
    find("legend").replaceChildren(page.likelihoodLegend());
    status("Writing …");
    const errors = await Promise.all(trees.map((each, index) => (
      write({ ...fields, n, model: chosen[index], prompt, seed }, each, each.map((tree) => tree.current)))));
    if (before.shown.length > 0 && !errors.includes("")) {
      showCards(before.shown, before.layout);
      status(errors[0]);
    }
  }

  function showCards(shown, layout) {
    cards = shown;
    find("texts").className = layout;
    find("texts").replaceChildren(...cards.map((card) => card.element));
  }

  /** Continues the current branch of a tree; the tokens are the prompt. The branch keeps the seed that it began with. */
  function continueBranch(tree, seed) {
    const ids = [...tree.promptIds, ...branches.path(tree.current).map(({ id }) => id)];
    status("Writing …");
    write({ ...settings.fields(), n: 1, model: tree.model, prompt: ids, seed }, [tree], [tree.current]);
  }

  /**
   * Sends a request, and adds what comes to the branches, the first of each tree's choice. Returns the error if no token
   * came, otherwise "".
   */
  async function write(fields, trees, targets) {
    const controller = new AbortController();
    const began = performance.now();
    running.add(controller);
    for (const branch of targets) {
      Object.assign(branch, { state: "writing", error: "", wrote: 0, seconds: 0, began: branch.tokens.length, text: "" });
    }
    refresh(trees);
    const body = { ...fields, logprobs: ALTERNATIVES, return_token_ids: true, context: "slide" };
    let outcome = "", error = "";
    try {
      for await (const piece of api.complete(body, controller.signal)) {
        for (const choice of piece.choices) await take(choice, trees[choice.index], targets[choice.index]);
      }
    } catch (failure) {
      if (failure.name === "AbortError") outcome = "stopped";
      else [outcome, error] = ["failed", `${failure.message}.`];
      if (failure.status === 401) askForKey();
    }
    running.delete(controller);
    for (const branch of targets) {
      branch.seconds = (performance.now() - began) / 1000;
      if (branch.state === "writing") Object.assign(branch, { state: outcome || "complete", error });
    }
    refresh(trees);
    if (running.size === 0) status(outcome === "stopped" ? "Stopped." : outcome === "failed" ? "" : "Done.");
    return targets.some(({ wrote }) => wrote > 0) ? "" : error;
  }

  /** Adds a piece of an answer to its branch. */
  async function take(choice, tree, branch) {
    if (choice.prompt_token_ids !== null && tree.promptIds === null) {
      tree.promptIds = choice.prompt_token_ids;
      tree.healed = await healed(tree);
      if (tree.healed > 0) cards.find((card) => card.tree === tree)?.draw();
    }
    const tokens = choice.logprobs.content.map(({ top_logprobs: alternatives, ...token }) => ({ ...token, alternatives }));
    branch.tokens.push(...tokens);
    branch.wrote += tokens.length;
    branch.text += choice.text;
    if (choice.finish_reason === "stop") endBeforeStop(tree, branch);
    if (choice.finish_reason !== null) { // a text that ends has a special token, one that is cut has none
      branch.state = choice.finish_reason === "stop" && tokens.at(-1)?.bytes === null ? "the text ended" : "complete";
    }
    if (tree.current === branch) cards.find((card) => card.tree === tree)?.add(tokens);
    if (choice.finish_reason !== null) refresh([tree]);
  }

  /** Takes from the last token what is not in the text: a text to stop before may begin in the middle of a token. */
  function endBeforeStop(tree, branch) {
    const written = branch.tokens.slice(branch.began);
    const last = written.at(-1);
    const bytes = written.reduce((sum, token) => sum + (token.bytes?.length ?? 0), 0);
    const again = branch.parent === null && branch.began === 0 ? tree.healed : 0; // spelled again, and not in the text
    const excess = bytes - again - new TextEncoder().encode(branch.text).length;
    if (!last?.bytes || excess <= 0 || excess >= last.bytes.length) return;
    last.whole = last.bytes;
    last.bytes = last.bytes.slice(0, -excess);
  }

  /** How many bytes of the first new tokens are the end of the prompt, which the model writes again (token healing). */
  async function healed({ model, prompt, promptIds }) {
    if (!/[\s']$/u.test(prompt)) return 0;
    const { tokens } = await api.ask("tokenize", { model, prompt });
    if (String(tokens) === String(promptIds)) return 0; // none was taken back
    const { prompt: kept } = await api.ask("detokenize", { model, tokens: promptIds });
    return new TextEncoder().encode(prompt.startsWith(kept) ? prompt.slice(kept.length) : prompt).length;
  }

  /** Brings the cards of trees and the buttons up to date. */
  function refresh(trees) {
    for (const card of cards) if (trees.includes(card.tree)) card.update();
    find("stop").hidden = running.size === 0;
    find("continue").disabled = running.size > 0;
  }

  function stop() {
    for (const controller of running) controller.abort();
  }

  const actions = {
    /** Writes on from a token; another token than the current one may have a branch, which is shown then. */
    branch(tree, index, token) {
      const card = cards.find((each) => each.tree === tree);
      const known = branches.existing(tree, index, token.id);
      if (known !== undefined && known !== tree.current) {
        tree.current = known;
        card.draw();
      } else {
        const { seed } = branches.leave(tree, index, token, settings.seed());
        card.draw();
        continueBranch(tree, seed);
      }
      card.focusAt(index);
    },
    more(tree) {
      tree.current.state = "writing";
      for (const token of branches.path(tree.current)) token.bytes = token.whole ?? token.bytes; // the model continues it
      cards.find((card) => card.tree === tree).draw(); // the first bytes of a character are no longer the end
      continueBranch(tree, settings.seed());
    },
    edit(text) {
      find("prompt").value = text;
      find("prompt").focus();
    },
    keepSeed(seed) {
      settings.keepSeed(seed);
      status(`The next texts have the seed ${seed}.`);
    },
    tell: status,
  };

  // The other tabs

  /** Offers the texts on the screen to the inspection: those of the cards, or the one to continue. */
  function offerTexts() {
    const select = find("inspected");
    const chosen = select.value;
    const options = cards.map((card, index) => make("option", { value: index }, card.title));
    select.replaceChildren(...options, make("option", { value: "prompt" }, "the text to continue"));
    if ([...select.options].some(({ value }) => value === chosen)) select.value = chosen;
  }

  function inspectSelected() {
    const { value } = find("inspected");
    if (value === "prompt") {
      const prompt = find("prompt").value;
      if (prompt === "") {
        find("inspection").replaceChildren();
        find("inspect-status").textContent = "There is no text yet: write one first.";
      } else views.showInspection({ model: find("model").value, prompt });
      return;
    }
    const { tree } = cards[value];
    const ids = [...(tree.promptIds ?? []), ...branches.path(tree.current).map(({ id }) => id)];
    views.showInspection({ model: tree.model, prompt: ids.length > 0 ? ids.slice(-100_000) : tree.prompt });
  }

  views.start((name) => {
    if (name === "inspect") {
      offerTexts();
      inspectSelected();
    } else if (name === "report") {
      views.showReport(find("model").value);
    }
  });
  find("inspected").addEventListener("change", inspectSelected);
  find("model").addEventListener("change", () => {
    if (!find("report").hidden) views.showReport(find("model").value);
  });

  listenToForm({ begin, stop, isShown: () => !find("write").hidden });
  status("Asking for the models …");
  loadModels();
})();
