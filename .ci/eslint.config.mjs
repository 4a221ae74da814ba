// What the scripts of minigpt/reports/assets are held to: plain scripts, run one after the other in one page.
const browser = ["Event", "Uint16Array", "Uint8Array", "atob", "document", "getComputedStyle", "globalThis", "matchMedia"];
const ours = ["page", "inspection", "chart", "report"]; // each is made by the script of its name, for those behind it

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
