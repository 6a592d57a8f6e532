// Translates the text box, and shows the alternatives.

import { afterPause, counted, element, page, setTabStop } from "./elements.js";
import { explainSoon, showMirror } from "./explanation.js";
import { successorOf } from "./models.js";
import {
  choiceKey,
  hold,
  nBest,
  resultOf,
  sentenceAt,
  separators,
  translationOf,
  translationText,
  translations,
} from "./sentences.js";
import { abort, begin, hideTrouble, report, split, state } from "./server.js";

const ANNOUNCE_PAUSE = 900; // milliseconds
const BATCH = 16; // sentences of one request
// The fields of what is wanted of a sentence's translation, and their values.
const wishes = [
  [page.beginning, page.beginningField, state.beginnings],
  [page.terms, page.termsField, state.terms],
  [page.avoided, page.avoidedField, state.avoided],
];

/** Translates the text box; drops what an earlier call still waits for. */
export async function translate() {
  if (!state.model) return;
  const signal = begin("translation");
  abort("explanation");
  const text = page.source.value;
  try {
    setBusy(true);
    const parts = text.trim()
      ? await split(text, signal)
      : { sentences: [], separators: [text] };
    signal.throwIfAborted();
    await translateParts(text, parts, signal);
    setBusy(false);
    if (page.trouble.dataset.kind !== "token") hideTrouble();
    announce();
  } catch (error) {
    if (!signal.aborted && (await successorOf(state.model, error))) return;
    if (!signal.aborted) markStale();
    report(error, signal);
  }
}

async function translateParts(text, parts, signal) {
  const unique = [...new Set(parts.sentences)];
  hold(unique);
  const missing = unique.filter((sentence) => !resultOf(sentence));
  for (let i = 0; i < missing.length; i += BATCH) {
    const time = await nBest(missing.slice(i, i + BATCH), signal);
    showLatency(time);
    signal.throwIfAborted();
    showParts(text, parts);
  }
  if (!missing.length) showParts(text, parts);
}

function showParts(text, parts) {
  state.text = text;
  state.parts = parts;
  // Who types a wish stays at its sentence.
  const isTyping = wishes.some(([node]) => document.activeElement === node);
  if (!isTyping || !parts.sentences[state.focus])
    state.focus = sentenceAt(page.source.selectionStart);
  showTranslation();
  showFocus();
}

const announce = afterPause(() => {
  page.announcer.textContent = translationText().trim();
}, ANNOUNCE_PAUSE);

function showTranslation() {
  const { sentences } = state.parts;
  const between = separators();
  const nodes = translations().flatMap((translation, i) => {
    const node = element("span", { textContent: translation });
    node.className = "sentence";
    if (sentences.length > 1) makeChoosable(node, i);
    return [between[i], node];
  });
  page.target.replaceChildren(...nodes, between.at(-1));
  if (!sentences.length) showPlaceholder();
  page.target.classList.remove("stale");
  const isWhole = sentences.every((_, i) => translationOf(i) !== null);
  page.copy.disabled = !sentences.length || !isWhole;
  showCut();
}

/** Shows that the translation is not that of the text. */
function markStale() {
  page.target.classList.add("stale");
  page.copy.disabled = true;
}

function makeChoosable(node, index) {
  node.setAttribute("role", "button");
  node.setAttribute("aria-pressed", "false");
  node.tabIndex = index === state.focus ? 0 : -1;
  node.dataset.sentence = index;
}

/** Says where the translation will appear. */
export function showPlaceholder() {
  const text = "The translation appears here as you type.";
  page.target.replaceChildren(
    element("span", { className: "placeholder", textContent: text }),
  );
  page.target.firstChild.lang = "en";
  page.latency.textContent = "";
}

function showCut() {
  const { sentences } = state.parts;
  const long = sentences.find((s) => resultOf(s)?.truncated);
  const ended = sentences.find((s) => resultOf(s)?.incomplete);
  const unmet = sentences.find((s) => resultOf(s)?.unmet);
  const first = long ?? ended ?? unmet;
  page.cut.hidden = !first;
  const start = first?.slice(0, 40);
  const pieces = counted(state.model?.max_pieces ?? 0, "word piece");
  page.cut.textContent = long
    ? `The sentence “${start}…” is too long for the model. Only its first ` +
      `${pieces} were translated.`
    : ended
      ? `The translation of “${start}…” reached its maximum length. Its end ` +
        "may be missing."
      : `The translation of “${start}…” does not have your words as you want ` +
        `them: ${resultOf(first)?.unmet.replaceAll("\n", ", ")}.`;
}

function showLatency(milliseconds) {
  const text =
    milliseconds < 1000
      ? `${Math.round(milliseconds)} ms`
      : `${(milliseconds / 1000).toFixed(1)} s`;
  page.latency.textContent = text;
}

function setBusy(isBusy) {
  page.target.setAttribute("aria-busy", isBusy);
}

function showFocus() {
  for (const node of page.target.querySelectorAll("[data-sentence]")) {
    const isIt = Number(node.dataset.sentence) === state.focus;
    node.setAttribute("aria-pressed", isIt);
    node.tabIndex = isIt ? 0 : -1;
  }
  showMirror([]);
  showWishes();
  showAlternatives();
  explainSoon();
}

/** Shows what is wanted of the translation of the sentence in focus. */
function showWishes() {
  const sentence = state.parts.sentences[state.focus];
  const isOffered = state.model.has_control && sentence !== undefined;
  for (const [node, field, values] of wishes) {
    field.hidden = !isOffered;
    const text = values.get(sentence) ?? "";
    if (document.activeElement !== node) node.value = text;
  }
}

/** Remembers what is wanted of the translation of the sentence in focus. */
export function readWishes() {
  const sentence = state.parts.sentences[state.focus];
  if (sentence === undefined) return;
  for (const [node, , values] of wishes) {
    const text = node.value.trim();
    if (text) values.set(sentence, text);
    else values.delete(sentence);
  }
}

/** Shows the alternatives and the attention of a sentence. */
export function focusOn(index) {
  if (index === state.focus) return;
  state.focus = index;
  showTranslation();
  showFocus();
}

function showAlternatives() {
  const sentence = state.parts.sentences[state.focus];
  const result = sentence && resultOf(sentence);
  page.alternatives.hidden = !result;
  if (!result) return;
  const { alternatives } = result;
  const several = state.parts.sentences.length > 1;
  page.alternativesNote.textContent =
    alternatives.length < 2
      ? "There are none. A larger beam size finds more."
      : several
        ? `For “${sentence}”`
        : "";
  const current = translationOf(state.focus);
  const items = alternatives.map((item) =>
    alternativeButton(item, alternatives[0], item.text === current),
  );
  page.alternativesList.lang = state.model.target;
  page.alternativesList.replaceChildren(...items);
  const index = alternatives.findIndex(({ text }) => text === current);
  setTabStop(page.alternativesList, "button", index);
}

function alternativeButton({ text, score }, best, isTaken) {
  const label = element("span", { className: "alternative-text" });
  label.append(...markedWords(text, best.text));
  if (!text) label.textContent = "(empty)";
  const bar = element("span", { className: "bar" });
  bar.setAttribute("aria-hidden", "true");
  bar.style.setProperty("--share", Math.exp(score - best.score).toFixed(3));
  const number = element("span", {
    className: "score",
    textContent: score.toFixed(2).replace("-", "−"),
  });
  const hidden = element("span", {
    className: "visually-hidden",
    textContent: " score ",
    lang: "en",
  });
  const button = element("button", { type: "button" });
  button.append(label, hidden, bar, number);
  button.setAttribute("aria-pressed", isTaken);
  button.addEventListener("click", () => take(text));
  return button;
}

/** Returns the words of a text; those that another lacks are marked. */
function markedWords(text, other) {
  const rest = other.split(" ");
  return text.split(" ").flatMap((word, i) => {
    const place = rest.indexOf(word);
    if (place >= 0) rest.splice(0, place + 1);
    const node = place >= 0 ? word : element("em", { textContent: word });
    return i ? [" ", node] : [node];
  });
}

function take(text) {
  state.choices.set(choiceKey(state.focus), text);
  const hadFocus = page.alternativesList.contains(document.activeElement);
  showTranslation();
  showFocus();
  if (hadFocus) page.alternativesList.querySelector("[tabindex='0']").focus();
  announce();
}
