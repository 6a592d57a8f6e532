// Keeps the sentences of the text box and their translations.

import { join, separatorsOf } from "./documents.js";
import { predict, state } from "./server.js";

const REMEMBERED = 2000; // translated sentences
const results = new Map(); // translations by `resultKey`
let room = REMEMBERED;

/** Keeps a value, and forgets the oldest of too many. */
export function store(map, key, value) {
  map.set(key, value);
  if (map.size > room) map.delete(map.keys().next().value);
}

/** Keeps the translations of a text's sentences, however many they are. */
export function hold(sentences) {
  room = Math.max(REMEMBERED, sentences.length);
  for (const key of sentences.map(resultKey)) {
    if (!results.has(key)) continue;
    const value = results.get(key);
    results.delete(key);
    results.set(key, value);
  }
}

function resultKey(sentence) {
  const { name, version } = state.model;
  const { beginnings, terms, avoided, settings } = state;
  const wishes = [beginnings, terms, avoided].map((map) => map.get(sentence));
  return JSON.stringify([name, version, settings, sentence, ...wishes]);
}

/** Returns the signature and the inputs of a search: `control`, which takes
 * longer, only where something is asked that `n_best` does not know. */
export function searchOf(text, model, settings, wishes = {}) {
  const { min_length, no_repeat_ngram_size, repetition_penalty, ...others } =
    settings;
  const rules = { min_length, no_repeat_ngram_size, repetition_penalty };
  const isOwn = Object.keys(rules).every((name) => rules[name] === model[name]);
  const valuesOf = (map) => text.map((sentence) => map?.get(sentence) ?? "");
  const linesOf = (map) =>
    valuesOf(map).map((value) => value.split(",").join("\n"));
  const lines = {
    target_prefix: valuesOf(wishes.beginnings),
    terms: linesOf(wishes.terms),
    avoid: linesOf(wishes.avoided),
  };
  const isPlain = isOwn && !Object.values(lines).flat().some(Boolean);
  if (!model.has_control || isPlain) return ["n_best", { text, ...others }];
  return ["control", { text, ...lines, ...settings }];
}

/** Returns what is known of a sentence's translations. */
export function resultOf(sentence) {
  return results.get(resultKey(sentence));
}

/** Asks for the translations of sentences; returns the milliseconds. */
export async function nBest(sentences, signal) {
  const keys = sentences.map(resultKey);
  const { model, settings } = state;
  const search = searchOf(sentences, model, settings, state);
  const start = performance.now();
  const answer = await predict(...search, signal);
  const time = performance.now() - start;
  keys.forEach((key, i) =>
    store(results, key, {
      alternatives: alternativesOf(answer.translation[i], answer.score[i]),
      truncated: answer.truncated[i],
      incomplete: answer.incomplete[i][0],
      unmet: answer.unmet?.[i][0],
    }),
  );
  return time;
}

/** Returns translations with their scores, each text once. */
function alternativesOf(translations, scores) {
  const seen = new Map();
  translations.forEach((text, i) => {
    if (!seen.has(text)) seen.set(text, scores[i]);
  });
  return [...seen].map(([text, score]) => ({ text, score }));
}

/** Returns the index of the sentence at a place of the source. */
export function sentenceAt(position) {
  const { sentences } = state.parts;
  for (let i = sentences.length - 1; i > 0; i--) {
    if (position >= startOf(i)) return i;
  }
  return 0;
}

/** Returns where a sentence starts in the source. */
export function startOf(index) {
  const { sentences, separators } = state.parts;
  const before = join(separators.slice(0, index), sentences.slice(0, index));
  return before.length + separators[index].length;
}

/** Returns the key of a choice: the sentence, and which one of its equals. */
export function choiceKey(index) {
  const { sentences } = state.parts;
  const sentence = sentences[index];
  const earlier = sentences.slice(0, index).filter((s) => s === sentence);
  return JSON.stringify([sentence, earlier.length]);
}

/** Returns the translation of a sentence that is shown, or null. */
export function translationOf(index) {
  const result = resultOf(state.parts.sentences[index]);
  if (!result) return null;
  const chosen = state.choices.get(choiceKey(index));
  const has = result.alternatives.some(({ text }) => text === chosen);
  return has ? chosen : result.alternatives[0].text;
}

/** Returns the translations of all sentences. */
export function translations() {
  return state.parts.sentences.map((_, i) => translationOf(i) ?? "…");
}

/** Returns the separators between the translations. */
export function separators() {
  return separatorsOf(state.parts, translations());
}

/** Returns the translation of the whole text. */
export function translationText() {
  return join(separators(), translations());
}
