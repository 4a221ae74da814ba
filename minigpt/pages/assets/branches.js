"use strict";

/**
 * A tree of texts that begin alike. A branch leaves its parent at the token `from`, counted from the end of the prompt,
 * and has its own tokens from there on. A token is that of reading.js, with the alternatives at its place.
 */
const branches = (() => {
  /** A tree with one branch, which continues the prompt. */
  function newTree(model, prompt, seed, sample) {
    const tree = { model, prompt, promptIds: null, healed: 0, all: [], current: null };
    tree.current = add(tree, { parent: null, from: 0, tokens: [], seed, sample });
    return tree;
  }

  function add(tree, fields) {
    const branch = { ...fields, state: "writing", error: "", children: [] };
    branch.parent?.children.push(branch);
    tree.all.push(branch);
    return branch;
  }

  /** All tokens after the prompt, from the root to the end of a branch. */
  function path({ parent, from, tokens }) {
    return parent === null ? tokens : [...path(parent).slice(0, from), ...tokens];
  }

  const beginsLike = (tokens, others, count) => (
    tokens.length >= count && others.slice(0, count).every(({ id }, index) => tokens[index].id === id));

  /** The branch that has this token at a place after the beginning of the current one, or undefined. */
  function existing(tree, index, id) {
    const tokens = path(tree.current);
    const found = tree.all.map((branch) => [branch, path(branch)])
      .filter(([, others]) => others[index]?.id === id && beginsLike(others, tokens, index));
    return (found.find(([branch]) => branch === tree.current) ?? found[0])?.[0];
  }

  /** A new branch that leaves the current one with a token in place of the one at `index`. */
  function leave(tree, index, token, seed) {
    let parent = tree.current;
    while (parent.parent !== null && index <= parent.from) parent = parent.parent;
    const { alternatives } = path(tree.current)[index];
    tree.current = add(tree, { parent, from: index, tokens: [{ ...token, alternatives }], seed, sample: 0 });
    return tree.current;
  }

  /** The places of the current text at which other branches begin. */
  function forks(tree) {
    const tokens = path(tree.current);
    const places = new Set();
    for (const branch of tree.all) {
      const others = path(branch);
      const shared = tokens.findIndex(({ id }, index) => others[index]?.id !== id);
      if (shared >= 0 && shared < others.length) places.add(shared);
    }
    return places;
  }

  return { newTree, path, existing, leave, forks };
})();
