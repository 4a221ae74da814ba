"use strict";

/**
 * Listens to the form of a text to continue (prompt_form.html): its buttons, Ctrl+Enter and Esc. `actions` are begin(),
 * stop(), and isShown() if the form can be hidden, when Ctrl+Enter is not for it.
 */
function listenToForm({ begin, stop, isShown = () => true }) {
  const find = (id) => document.getElementById(id);
  find("form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!find("continue").disabled) begin();
  });
  find("form").addEventListener("invalid", () => { find("settings").open = true; }, true);
  find("stop").addEventListener("click", stop);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") stop();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && isShown()) find("form").requestSubmit();
  });
}
