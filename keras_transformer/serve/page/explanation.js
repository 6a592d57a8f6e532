// Shows the attention of the sentence in focus, and tints its words.

import { AttentionView } from "./attention.js";
import { afterPause, element, page } from "./elements.js";
import { successorOf } from "./models.js";
import { locate } from "./pieces.js";
import { choiceKey, startOf, store, translationOf } from "./sentences.js";
import { begin, predict, predictPath, report, state } from "./server.js";

const EXPLAIN_PAUSE = 120; // milliseconds

const explanations = new Map();
export const attention = new AttentionView({
  onGroups: showWords,
  onHighlight: tintWords,
});

/** Explains the sentence in focus, after a pause in the calls. */
export const explainSoon = afterPause(explain, EXPLAIN_PAUSE);

async function explain() {
  const sentence = state.parts.sentences[state.focus];
  if (!sentence || !state.model.has_explain) {
    page.attention.hidden = true;
    return;
  }
  const signal = begin("explanation");
  const language = state.settings.target_language;
  const text = language ? `>>${language}<< ${sentence}` : sentence;
  const key = JSON.stringify([predictPath(state.model), text]);
  try {
    if (!explanations.has(key)) {
      const inputs = { text: [text] };
      const outputs = await predict("explain", inputs, signal);
      signal.throwIfAborted();
      store(explanations, key, firstRow(outputs));
    }
    showExplanation(sentence, explanations.get(key));
  } catch (error) {
    if (!signal.aborted && (await successorOf(state.model, error))) return;
    page.attention.hidden = true;
    report(error, signal);
  }
}

function firstRow(outputs) {
  return Object.fromEntries(
    Object.entries(outputs).map(([name, rows]) => [name, rows[0]]),
  );
}

function showExplanation(sentence, answer) {
  page.attention.hidden = !answer.target_pieces.some((piece) => piece);
  if (page.attention.hidden) return;
  const shown = translationOf(state.focus);
  const isShown = shown === answer.translation;
  const isTaken = state.choices.get(choiceKey(state.focus)) === shown;
  const why = isTaken
    ? "You took an alternative."
    : "Your settings find another translation.";
  page.attentionNote.textContent =
    `${why} The attention is that of the model’s own best translation: ` +
    `“${answer.translation}”`;
  state.explained = { sentence, translation: isShown ? shown : null };
  const { source, target } = state.model;
  attention.show(answer, { source, target });
}

/** Marks the words in both texts, so that they can be tinted. */
function showWords({ source, target }) {
  const { sentence, translation } = state.explained;
  const { isEncoder } = attention;
  page.attentionNote.hidden = isEncoder || translation !== null;
  if (sentence !== state.parts.sentences[state.focus]) return;
  showMirror(wordNodes(sentence, source, "source"));
  const nodes = page.target.querySelectorAll(".sentence");
  if (isEncoder) {
    const node = nodes[state.focus];
    node.replaceChildren(node.textContent); // without words to tint
    return;
  }
  if (translation !== translationOf(state.focus)) return;
  const words = wordNodes(translation, target, "target");
  nodes[state.focus].replaceChildren(...words);
}

function wordNodes(text, groups, side) {
  const nodes = [];
  let from = 0;
  locate(groups, text).forEach((range, i) => {
    if (!range) return;
    const word = element("span", { className: "tint" });
    word.textContent = text.slice(range.start, range.end);
    word.dataset.word = `${side} ${i}`;
    word.classList.toggle("unsure", attention.isUnsure(side, i));
    nodes.push(text.slice(from, range.start), word);
    from = range.end;
  });
  return [...nodes, text.slice(from)];
}

/** Writes the source behind the text box, where words can be tinted. */
export function showMirror(words) {
  const { value } = page.source;
  const { sentences } = state.parts;
  const sentence = sentences[state.focus];
  // A last line that is empty has a height only with a character in it.
  if (value !== state.text || sentence === undefined) {
    page.mirror.replaceChildren(`${value}\u200b`);
    return;
  }
  const start = startOf(state.focus);
  const node = element("span", { className: "sentence" });
  node.classList.toggle("current", sentences.length > 1);
  node.append(...(words.length ? words : [sentence]));
  const rest = value.slice(start + sentence.length);
  page.mirror.replaceChildren(value.slice(0, start), node, `${rest}\u200b`);
}

/** Tints what a word looked at; in the encoder's view, in the source alone. */
function tintWords(side, index, weights) {
  const { isEncoder } = attention;
  for (const node of document.querySelectorAll("[data-word]")) {
    const [nodeSide, place] = node.dataset.word.split(" ");
    const isOwn = isEncoder || nodeSide === side;
    const isOther = side && (isEncoder || nodeSide !== side);
    const isIt = isOwn && Number(place) === index;
    const weight = isOther ? weights[place] : 0;
    node.classList.toggle("current", isIt);
    node.style.setProperty("--weight", weight.toFixed(3));
  }
}

/** Highlights the word under the pointer. */
export function pointAt(event) {
  const place = event.target.dataset?.word?.split(" ");
  if (!place) return attention.highlight(attention.pinned);
  return attention.highlight({ side: place[0], index: Number(place[1]) });
}
