// Rules for the scripts in minigpt/*/assets: plain scripts that run one after the other in one page.
const browser = [
  "Event", "EventSource", "ResizeObserver", "Uint16Array", "Uint8Array", "atob", "document", "getComputedStyle",
  "globalThis", "location", "matchMedia",
];
const ours = ["page", "inspection", "inspected", "chart", "report"]; // each is defined by the script of its name, for the later ones

export default [
  {
    files: ["**/*.js"],
    languageOptions: {
      ecmaVersion: 2023,
      sourceType: "script",
      globals: Object.fromEntries([...browser, ...ours].map((name) => [name, "readonly"])),
    },
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      curly: ["error", "multi-line"],
      eqeqeq: "error",
      "no-shadow": "error",
      "no-undef": "error",
      "no-unused-vars": ["error", { varsIgnorePattern: `^(${ours.join("|")})$` }],
      "no-var": "error",
      "prefer-const": "error",
      strict: ["error", "global"],
    },
  },
];
