// Rules for the scripts in minigpt/*/assets and minigpt/exporters/html/assets: plain scripts that run one after the other in one page.
const browser = [
  "AbortController", "Event", "EventSource", "ResizeObserver", "TextDecoder", "TextEncoder", "Uint16Array",
  "Uint32Array", "Uint8Array", "atob", "crypto", "document", "fetch", "getComputedStyle", "getSelection", "globalThis",
  "location", "matchMedia", "navigator", "performance", "setTimeout",
];
// Each is defined by a script, for the later ones.
const ours = [
  "page", "inspection", "inspected", "chart", "report", "reading", "api", "branches", "settings", "newCard", "listenToForm", "views",
];

const exported = [ // the page of `minigpt export --to html`, its worker, and the script for node
  "Blob", "Buffer", "attending", "writing", "DecompressionStream", "MessageChannel", "URL", "WebAssembly", "Worker", "module", "onmessage", "postMessage",
  "process", "require", "payload", "tokenizing", "constraining", "sampling", "plain", "wasm", "generation",
];

export default [
  {
    files: ["**/*.js"],
    languageOptions: {
      ecmaVersion: 2023,
      sourceType: "script",
      globals: Object.fromEntries([...browser, ...ours, ...exported].map((name) => [name, "readonly"])),
    },
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      curly: ["error", "multi-line"],
      eqeqeq: "error",
      "no-shadow": "error",
      "no-undef": "error",
      "no-unused-vars": ["error", { varsIgnorePattern: `^(${[...ours, ...exported].join("|")})$` }],
      "no-var": "error",
      "prefer-const": "error",
      strict: ["error", "global"],
    },
  },
];
