// Sentences to try, of models whose kind of text is known.

import { element, page } from "./elements.js";

const EXAMPLES = {
  demo: [
    "Room 7 is on the third floor.",
    "The train to Vienna leaves at half past six from platform 12.",
    "My sister bought a beautiful lamp for €1,249.50.",
    "On Monday there were forty-seven children in the museum.",
  ],
  "captions-en-de": [
    "Two dogs are playing in the snow.",
    "A woman in a red coat is waiting at the bus stop.",
    "Three children build a sandcastle on the beach.",
    "An old man is reading a newspaper on a park bench.",
  ],
};

/** Shows the sentences of a model, if there are any. */
export function showExamples(model) {
  const examples = EXAMPLES[model] ?? [];
  page.examples.hidden = !examples.length;
  const buttons = examples.map((text) => {
    const button = element("button", { type: "button", textContent: text });
    button.lang = "en";
    button.addEventListener("click", () => {
      page.source.value = text;
      page.source.focus();
      page.source.dispatchEvent(new Event("input"));
    });
    return button;
  });
  page.examples.replaceChildren(...buttons);
}
