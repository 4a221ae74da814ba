"use strict";

/**
 * The card of a tree: its current text token by token, what else was likely, its branches.
 * `actions` are what the page does: branch(tree, index, token), more(tree), edit(text), keepSeed(seed), tell(text). With
 * explain(tree, index), what it returns is shown below the alternatives of the token at that place.
 */
function newCard(tree, title, actions) {
  const { make, percent } = page;
  const { path, existing, forks } = branches;
  const given = make("span", { class: "given" });
  const text = make("div", { class: "reading", dir: "auto", role: "group", "aria-label": `${title}, token by token` });
  const details = make("div", { class: "panel", role: "group", "aria-label": "what else was likely" });
  const facts = make("p", { class: "muted number facts" });
  const failure = make("p", { class: "error", role: "alert" });
  const tools = make("p", { class: "buttons" });
  const list = make("nav", { "aria-label": `branches of ${title}` });
  const element = make("article", { class: "card", "aria-label": title },
    make("h2", { dir: "auto" }, title), text, details, failure, facts, tools, list);
  let reader, pieces, pending, opened; // pieces: { start, end, text, element }, for tokens from start to end
  details.hidden = true;

  const button = (label, click) => make("button", { type: "button", click }, label);
  const more = button("Write more", () => actions.more(tree));
  const back = button("Back", goBack);
  const keep = button("Keep seed", () => actions.keepSeed(tree.current.seed));
  tools.append(more, back, button("Copy", copy), button("Edit", () => actions.edit(whole())), keep);

  const whole = () => tree.prompt + pieces.map((piece) => piece.text).join("");

  /** Shows the current branch from its beginning. */
  function draw() {
    [reader, pieces, pending, opened] = [reading.newReader(tree.healed), [], [], null];
    given.textContent = reading.visible(tree.prompt);
    text.replaceChildren(given);
    details.hidden = true;
    add(path(tree.current));
    update();
  }

  /** Shows tokens at the end of the current branch. */
  function add(tokens) {
    for (const token of tokens) {
      pending.push(token);
      const characters = reader.feed(token);
      if (token.bytes === null) addPiece(token.token, "special");
      else if (characters !== "") addPiece(characters, "");
    }
  }

  /**
   * Shows what the pending tokens spell: usually one token, several if they are the bytes of one character. `kind` is
   * "special" for a special token, "incomplete" for the first bytes of a character; neither is copied.
   */
  function addPiece(characters, kind) {
    const start = pieces.at(-1)?.end ?? 0;
    const piece = { start, end: start + pending.length, text: kind === "" ? characters : "", tokens: pending };
    const logprob = pending.reduce((sum, token) => sum + token.logprob, 0);
    const index = pieces.length;
    piece.element = make("span", {
      class: `piece ${/^\n+$/.test(characters) ? "newline" : kind}`,
      role: "button", tabindex: index === 0 ? 0 : -1, "aria-pressed": "false",
      "aria-label": `${pending.map(reading.label).join("")}, probability ${percent(logprob)}`,
      click: () => open(index), focus: () => setStop(index), pointerenter: () => { piece.element.title = summary(piece); },
    }, kind === "special" ? ` ⏹ ${characters}` : reading.visible(characters));
    page.tint(piece.element, logprob);
    text.append(piece.element);
    pieces.push(piece);
    pending = [];
  }

  /** What else was likely at the tokens of a piece, in a line for each: for the mouse, without opening it. */
  function summary({ tokens }) {
    return tokens.map((token) => {
      const others = token.alternatives.filter(({ id }) => id !== token.id).slice(0, 5);
      return [token, ...others].map((each) => `${reading.label(each)} ${percent(each.logprob)}`).join(" · ");
    }).join("\n");
  }

  function setStop(index) {
    pieces.forEach((piece, other) => piece.element.setAttribute("tabindex", other === index ? 0 : -1));
  }

  /** Brings the facts, the buttons and the list of branches up to date; at the end of a text also its last bytes. */
  function update() {
    const { state, error, seed, seconds } = tree.current;
    if (state !== "writing" && pending.length > 0) addPiece(pending.map(reading.label).join(""), "incomplete");
    const count = path(tree.current).length;
    const speed = seconds > 0 ? `, ${Math.round(tree.current.wrote / seconds).toLocaleString("en")} tokens/s` : "";
    facts.textContent = `seed ${seed} · ${count} tokens${speed} · ${state}`;
    failure.textContent = error;
    text.setAttribute("aria-busy", String(state === "writing"));
    more.disabled = state === "writing" || state === "the text ended" || tree.promptIds === null;
    back.hidden = tree.current.parent === null;
    const places = forks(tree);
    for (const piece of pieces) {
      let isForked = false;
      for (let index = piece.start; index < piece.end; index++) isForked ||= places.has(index);
      piece.element.classList.toggle("forked", isForked);
    }
    list.hidden = tree.all.length < 2;
    list.replaceChildren(make("h3", {}, "Branches"), make("ol", { class: "branches" }, item(tree.all[0])));
  }

  /** A branch in the list, with those that leave it. */
  function item(branch) {
    const first = reading.newReader(branch.parent === null ? tree.healed : 0);
    const start = branch.tokens.slice(0, 12).map((token) => (token.bytes === null ? token.token : first.feed(token)));
    const entry = make("button", {
      type: "button", "aria-current": branch === tree.current ? "true" : null, click: () => select(branch),
    }, `${branch.parent === null ? "" : `${branch.from}: `}`, make("bdi", {}, reading.visible(start.join("")) || "…"));
    const inside = branch.children.map(item);
    return make("li", {}, entry, inside.length ? make("ol", {}, ...inside) : "");
  }

  /** Shows another branch, and keeps the focus in the list. */
  function select(branch) {
    tree.current = branch;
    draw();
    list.querySelector("[aria-current]")?.focus();
  }

  /** Shows the branch that this one left, at the place where it did. */
  function goBack() {
    const { parent, from } = tree.current;
    if (parent === null) return;
    tree.current = parent;
    draw();
    focusAt(from);
  }

  /** Shows what else was likely at the tokens of a piece. */
  function open(index) {
    const { start, tokens, element: its } = pieces[index];
    close();
    opened = index;
    its.setAttribute("aria-pressed", "true");
    const parts = tokens.flatMap((token, offset) => {
      const place = start + offset;
      const note = ({ id }) => (id !== token.id && existing(tree, place, id) ? "branch" : null);
      const listed = token.alternatives.some(({ id }) => id === token.id) ? token.alternatives
        : [...token.alternatives, token];
      return [
        make("h3", {}, make("bdi", {}, `‘${reading.label(token)}’`), ` had ${percent(token.logprob)}`,
          tokens.length > 1 ? ` (byte token ${offset + 1} of ${tokens.length})` : "", "; write on from another, or again from this one:"),
        reading.choices(listed, token.id, (chosen) => actions.branch(tree, place, chosen), note),
      ];
    });
    details.replaceChildren(...parts, ...(actions.explain ? [actions.explain(tree, start + tokens.length - 1)] : []));
    details.hidden = false;
  }

  function close() {
    if (opened === null) return false;
    pieces[opened]?.element.setAttribute("aria-pressed", "false");
    opened = null;
    details.hidden = true;
    return true;
  }

  /** Moves the focus to the piece that contains a token. */
  function focusAt(index) {
    pieces.find((piece) => piece.end > index)?.element.focus();
  }

  async function copy() {
    try {
      await navigator.clipboard.writeText(whole());
      actions.tell("Copied.");
    } catch {
      getSelection().selectAllChildren(text);
      actions.tell("The browser does not let this page copy; the text is selected instead.");
    }
  }

  text.addEventListener("keydown", (event) => {
    const at = pieces.findIndex((piece) => piece.element === document.activeElement);
    if (at < 0) return;
    const isLeft = getComputedStyle(text).direction === "rtl";
    const step = { ArrowLeft: isLeft ? 1 : -1, ArrowRight: isLeft ? -1 : 1, Home: -at, End: pieces.length }[event.key];
    if (step !== undefined) pieces[Math.min(pieces.length - 1, Math.max(0, at + step))].element.focus();
    else if (event.key === "Backspace") goBack();
    else if (event.key === "Enter" || event.key === " ") {
      if (event.ctrlKey || event.metaKey) return;
      open(at);
      details.querySelector("[aria-current]")?.focus();
    } else return;
    event.preventDefault();
  });
  details.addEventListener("keydown", (event) => {
    const buttons = [...details.querySelectorAll(".choices button")];
    const at = buttons.indexOf(document.activeElement);
    const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    if (event.key === "Escape") {
      const { element: its } = pieces[opened];
      close();
      its.focus();
      event.stopPropagation();
    } else if (step !== undefined && at >= 0) buttons[Math.min(buttons.length - 1, Math.max(0, at + step))].focus();
    else return;
    event.preventDefault();
  });

  draw();
  return { element, tree, title, draw, add, update, focusAt };
}
