// Translates while one types, and connects the parts of the page.

import {
  AttentionView,
  element,
  locate,
  rove,
  setTabStop,
} from "./attention.js";
import { ServerError, keepToken, makeClient } from "./client.js";
import {
  join,
  readText,
  translateText,
  translatedName,
} from "./documents.js";

const TYPING_PAUSE = 180; // milliseconds
const EXPLAIN_PAUSE = 120;
const ANNOUNCE_PAUSE = 900;
const BATCH = 16; // sentences of one request
const REMEMBERED = 2000; // translated sentences
const EXAMPLES = [
  "Room 7 is on the third floor.",
  "The train to Vienna leaves at half past six from platform 12.",
  "My sister bought a beautiful lamp for €1,249.50.",
  "On Monday there were forty-seven children in the museum.",
];
const SIGNATURE_LABELS = {
  layers: "Layers",
  d_model: "Width (d_model)",
  d_ff: "Feed-forward width (d_ff)",
  heads: "Attention heads",
  norm: "Layer normalization",
  positions: "Positions",
  tied: "Shared embeddings",
  dropout: "Dropout",
  smooth: "Label smoothing",
  vocab: "Vocabulary",
  languages: "Languages",
  val_bleu: "BLEU on the validation split",
  version: "Version of keras_transformer",
};

const page = {};
for (const node of document.querySelectorAll("[id]")) {
  page[node.id.replace(/-(\w)/g, (_, c) => c.toUpperCase())] = node;
}

const state = {
  models: [],
  model: null,
  settings: {},
  text: "", // what `parts` was made of
  parts: { sentences: [], separators: [""] },
  focus: 0, // index of the sentence whose alternatives are shown
  choices: new Map(), // translations that the user took, by `choiceKey`
};
const results = new Map(); // translations by `resultKey`
const explanations = new Map();
const runs = {}; // an AbortController for each kind of work

const request = makeClient(showWaiting);
const attention = new AttentionView({
  onGroups: showWords,
  onHighlight: tintWords,
});

// ---- Small helpers --------------------------------------------------------

/** Aborts earlier work of a kind, and returns a signal for the new. */
function begin(kind) {
  runs[kind]?.abort();
  runs[kind] = new AbortController();
  return runs[kind].signal;
}

/** Returns a function that runs after a pause in its calls. */
function afterPause(action, milliseconds) {
  let timer;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...values), milliseconds);
  };
}

function store(map, key, value) {
  map.set(key, value);
  if (map.size > REMEMBERED) map.delete(map.keys().next().value);
}

function remember(key, value) {
  try {
    localStorage.setItem(key, value);
  } catch {
    // The choice holds until the page is closed.
  }
}

function languageName(code) {
  try {
    return new Intl.DisplayNames(["en"], { type: "language" }).of(code);
  } catch {
    return code;
  }
}

function counted(count, noun) {
  return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
}

// ---- The server -----------------------------------------------------------

function predictPath({ name, version }) {
  return `v1/models/${encodeURIComponent(name)}/versions/${version}:predict`;
}

async function predict(signature, inputs, signal) {
  const body = { signature_name: signature, inputs };
  return (await request(predictPath(state.model), body, signal)).outputs;
}

function split(text, signal) {
  const body = { text, language: state.model.source };
  return request("api/split", body, signal);
}

function resultKey(sentence) {
  const { name, version } = state.model;
  return JSON.stringify([name, version, state.settings, sentence]);
}

function resultOf(sentence) {
  return results.get(resultKey(sentence));
}

async function nBest(sentences, signal) {
  const keys = sentences.map(resultKey);
  const inputs = { text: sentences, ...state.settings };
  const start = performance.now();
  const answer = await predict("n_best", inputs, signal);
  showLatency(performance.now() - start);
  keys.forEach((key, i) =>
    store(results, key, {
      alternatives: alternativesOf(answer.translation[i], answer.score[i]),
      truncated: answer.truncated[i],
    }),
  );
}

/** Returns translations with their scores, each text once. */
function alternativesOf(translations, scores) {
  const seen = new Map();
  translations.forEach((text, i) => {
    if (!seen.has(text)) seen.set(text, scores[i]);
  });
  return [...seen].map(([text, score]) => ({ text, score }));
}

// ---- Trouble --------------------------------------------------------------

function showWaiting(kind, seconds) {
  if (kind === null) {
    if (page.trouble.dataset.kind === "wait") page.trouble.hidden = true;
    return;
  }
  const when = `Trying again in ${counted(Math.ceil(seconds), "second")}.`;
  const what = {
    offline: "The server cannot be reached.",
    busy: "The server is busy.",
  }[kind];
  showTrouble(`${what} ${when}`, "wait");
}

function showTrouble(message, kind) {
  page.trouble.dataset.kind = kind;
  page.troubleText.textContent = message;
  page.retry.hidden = kind !== "error";
  page.tokenForm.hidden = kind !== "token";
  page.trouble.hidden = false;
}

function hideTrouble() {
  page.trouble.hidden = true;
}

/** Shows an error, unless it says that newer work has begun. */
function report(error, signal) {
  if (signal?.aborted) return;
  setBusy(false);
  if (error instanceof ServerError && error.status === 401) {
    showTrouble("This server asks for an access token.", "token");
    page.token.focus();
  } else {
    showTrouble(error.message, "error");
  }
}

async function startAgain() {
  hideTrouble();
  if (await loadModels()) await translate();
}

// ---- Models and settings --------------------------------------------------

async function loadModels() {
  const signal = begin("models");
  try {
    state.models = (await request("api/models", undefined, signal)).models;
    if (!state.models.length) {
      throw new Error("The server has not loaded a model yet.");
    }
  } catch (error) {
    report(error, signal);
    return false;
  }
  const label = ({ name, version }) => `${name}, version ${version}`;
  const chosen = page.model.selectedOptions[0]?.textContent;
  page.model.replaceChildren(
    ...state.models.map((model, i) => new Option(label(model), i)),
  );
  const index = state.models.findIndex((model) => label(model) === chosen);
  page.model.value = Math.max(index, 0);
  useModel(state.models[page.model.value]);
  return true;
}

function useModel(model) {
  state.model = model;
  const source = languageName(model.source);
  const target = languageName(model.target);
  page.title.textContent = `${source} to ${target}`;
  document.title = `${source} to ${target} – keras_transformer`;
  page.sourceLabel.textContent = source;
  page.targetLabel.textContent = target;
  page.source.lang = model.source;
  page.target.lang = model.target;
  page.examples.hidden = model.name !== "demo";
  page.beamSize.max = model.max_beam_size;
  page.maxLength.max = model.max_length;
  showSignature(model);
  resetSettings();
}

function showSignature(model) {
  const rows = [["Name", `${model.name}, version ${model.version}`]];
  for (const field of model.signature.split("|")) {
    const colon = field.indexOf(":");
    const name = field.slice(0, colon);
    rows.push([
      SIGNATURE_LABELS[name] ?? name,
      signatureValue(name, field.slice(colon + 1)),
    ]);
  }
  rows.push(["Longest sentence", counted(model.max_pieces, "word piece")]);
  const items = rows.flatMap(([name, value]) => [
    element("dt", { textContent: name }),
    element("dd", { textContent: value }),
  ]);
  page.about.replaceChildren(...items);
}

function signatureValue(name, value) {
  const words = { pre: "before each sublayer", post: "after each sublayer" };
  if (name === "norm") return words[value] ?? value;
  if (name === "tied" && value === "yes") return "source, target and output";
  if (name === "tied") return "target and output";
  if (name === "vocab") {
    const [, kind, size] = /^(\w+)-(\d+)$/.exec(value) ?? [];
    if (size) return `${counted(+size, "piece")} (${kind.toUpperCase()})`;
  }
  if (name === "languages") {
    return value.split("-").map(languageName).join(" to ");
  }
  return value;
}

function resetSettings() {
  const { beam_size, alpha, max_length } = state.model;
  page.beamSize.value = beam_size;
  page.alpha.value = alpha;
  page.maxLength.value = max_length;
  state.settings = { beam_size, alpha, max_length };
  showSettings();
}

function readSettings() {
  const most = Number(page.maxLength.max);
  const length = Math.round(Number(page.maxLength.value)) || most;
  page.maxLength.value = Math.min(Math.max(length, 1), most);
  state.settings = {
    beam_size: Number(page.beamSize.value),
    alpha: Number(page.alpha.value),
    max_length: Number(page.maxLength.value),
  };
  showSettings();
}

function hasOwnSettings() {
  const { model, settings } = state;
  return Object.keys(settings).every((name) => settings[name] === model[name]);
}

function showSettings() {
  page.beamSizeValue.textContent = state.settings.beam_size;
  page.alphaValue.textContent = state.settings.alpha;
  page.reset.disabled = hasOwnSettings();
}

// ---- Translating ----------------------------------------------------------

/** Translates the text box; drops what an earlier call still waits for. */
async function translate() {
  if (!state.model) return;
  const signal = begin("translation");
  runs.explanation?.abort();
  const text = page.source.value;
  try {
    setBusy(true);
    const parts = text.trim()
      ? await split(text, signal)
      : { sentences: [], separators: [text] };
    signal.throwIfAborted();
    await translateParts(text, parts, signal);
    setBusy(false);
    if (page.trouble.dataset.kind === "error") hideTrouble();
    announce();
  } catch (error) {
    report(error, signal);
  }
}

async function translateParts(text, parts, signal) {
  const unique = [...new Set(parts.sentences)];
  const missing = unique.filter((sentence) => !resultOf(sentence));
  for (let i = 0; i < missing.length; i += BATCH) {
    await nBest(missing.slice(i, i + BATCH), signal);
    signal.throwIfAborted();
    showParts(text, parts);
  }
  if (!missing.length) showParts(text, parts);
}

function showParts(text, parts) {
  state.text = text;
  state.parts = parts;
  state.focus = sentenceAt(page.source.selectionStart);
  showTranslation();
  showFocus();
}

/** Returns the index of the sentence at a place of the source. */
function sentenceAt(position) {
  const { sentences } = state.parts;
  for (let i = sentences.length - 1; i > 0; i--) {
    if (position >= startOf(i)) return i;
  }
  return 0;
}

function startOf(index) {
  const { sentences, separators } = state.parts;
  const before = join(separators.slice(0, index), sentences.slice(0, index));
  return before.length + separators[index].length;
}

/** Returns the key of a choice: the sentence, and which one of its equals. */
function choiceKey(index) {
  const { sentences } = state.parts;
  const sentence = sentences[index];
  const earlier = sentences.slice(0, index).filter((s) => s === sentence);
  return JSON.stringify([sentence, earlier.length]);
}

/** Returns the translation of a sentence that is shown, or null. */
function translationOf(index) {
  const result = resultOf(state.parts.sentences[index]);
  if (!result) return null;
  const chosen = state.choices.get(choiceKey(index));
  const has = result.alternatives.some(({ text }) => text === chosen);
  return has ? chosen : result.alternatives[0].text;
}

function translations() {
  return state.parts.sentences.map((_, i) => translationOf(i) ?? "…");
}

function translationText() {
  return join(state.parts.separators, translations());
}

const announce = afterPause(() => {
  page.announcer.textContent = translationText().trim();
}, ANNOUNCE_PAUSE);

function showTranslation() {
  const { sentences, separators } = state.parts;
  const nodes = translations().flatMap((translation, i) => {
    const node = element("span", { textContent: translation });
    node.className = "sentence";
    if (sentences.length > 1) makeChoosable(node, i);
    return [separators[i], node];
  });
  page.target.replaceChildren(...nodes, separators.at(-1));
  if (!sentences.length) showPlaceholder();
  page.copy.disabled = !sentences.length;
  showCut();
}

function makeChoosable(node, index) {
  node.setAttribute("role", "button");
  node.setAttribute("aria-pressed", "false");
  node.tabIndex = index === state.focus ? 0 : -1;
  node.dataset.sentence = index;
}

function showPlaceholder() {
  const text = "The translation appears here as you type.";
  page.target.replaceChildren(
    element("span", { className: "placeholder", textContent: text }),
  );
  page.target.firstChild.lang = "en";
  page.latency.textContent = "";
}

function showCut() {
  const cut = state.parts.sentences.filter((s) => resultOf(s)?.truncated);
  page.cut.hidden = !cut.length;
  const start = cut[0]?.slice(0, 40);
  page.cut.textContent =
    `The sentence “${start}…” is too long for the model. Only its first ` +
    `${counted(state.model?.max_pieces ?? 0, "word piece")} were translated.`;
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

// ---- The sentence in focus ------------------------------------------------

function showFocus() {
  for (const node of page.target.querySelectorAll("[data-sentence]")) {
    const isIt = Number(node.dataset.sentence) === state.focus;
    node.setAttribute("aria-pressed", isIt);
    node.tabIndex = isIt ? 0 : -1;
  }
  showMirror([]);
  showAlternatives();
  explainSoon();
}

function focusOn(index) {
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

// ---- Attention ------------------------------------------------------------

const explainSoon = afterPause(explain, EXPLAIN_PAUSE);

async function explain() {
  const sentence = state.parts.sentences[state.focus];
  if (!sentence) {
    page.attention.hidden = true;
    return;
  }
  const signal = begin("explanation");
  const key = JSON.stringify([predictPath(state.model), sentence]);
  try {
    if (!explanations.has(key)) {
      const inputs = { text: [sentence] };
      const outputs = await predict("explain", inputs, signal);
      signal.throwIfAborted();
      store(explanations, key, firstRow(outputs));
    }
    showExplanation(sentence, explanations.get(key));
  } catch (error) {
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
  const why = state.choices.has(choiceKey(state.focus))
    ? "You took an alternative."
    : "Your settings find another translation.";
  page.attentionNote.hidden = isShown;
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
  showMirror(wordNodes(sentence, source, "source"));
  const nodes = page.target.querySelectorAll(".sentence");
  if (translation === null || !nodes[state.focus]) return;
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
    nodes.push(text.slice(from, range.start), word);
    from = range.end;
  });
  return [...nodes, text.slice(from)];
}

/** Writes the source behind the text box, where words can be tinted. */
function showMirror(words) {
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

function tintWords(side, index, weights) {
  for (const node of document.querySelectorAll("[data-word]")) {
    const [nodeSide, place] = node.dataset.word.split(" ");
    const isIt = nodeSide === side && Number(place) === index;
    const weight = side && nodeSide !== side ? weights[place] : 0;
    node.classList.toggle("current", isIt);
    node.style.setProperty("--weight", weight.toFixed(3));
  }
}

function pointAt(event) {
  const place = event.target.dataset?.word?.split(" ");
  if (!place) return attention.highlight(attention.pinned);
  return attention.highlight({ side: place[0], index: Number(place[1]) });
}

// ---- Files ----------------------------------------------------------------

async function translateFile(file) {
  if (!file || !state.model) return;
  const signal = begin("document");
  const started = performance.now();
  const { target } = state.model;
  showDocument(`Reading “${file.name}”…`, "Cancel");
  const onProgress = (done, total) => {
    page.documentProgress.max = total;
    page.documentProgress.value = done;
    const left = timeLeft(started, done, total);
    showDocument(
      `“${file.name}”: ${done.toLocaleString("en")} of ` +
        `${counted(total, "sentence")}${left}`,
      "Cancel",
    );
  };
  try {
    const text = await readText(file);
    const answer = await translateText(text, {
      split: (block) => split(block, signal),
      translate: makeChunkTranslator(signal),
      onProgress,
    });
    signal.throwIfAborted();
    offer(answer, translatedName(file.name, target));
  } catch (error) {
    if (signal.aborted) return;
    showDocument(error.message, "Close");
    page.documentProgress.hidden = true;
    if (error.status === 401) report(error, signal);
  }
}

/** Returns a function that translates sentences with the present settings. */
function makeChunkTranslator(signal) {
  const settings = hasOwnSettings() ? null : { ...state.settings };
  const path = predictPath(state.model);
  return async (text) => {
    const inputs = { text, ...settings };
    const signature_name = settings ? "n_best" : "serving_default";
    const body = { signature_name, inputs };
    const { outputs } = await request(path, body, signal);
    const { translation, truncated } = outputs;
    const first = settings ? translation.map((row) => row[0]) : translation;
    return { translations: first, truncated };
  };
}

function timeLeft(started, done, total) {
  const seconds = (performance.now() - started) / 1000;
  const left = (seconds / done) * (total - done);
  if (!done || seconds < 3 || left < 3) return "";
  if (left < 90) return `, about ${Math.round(left)} s left`;
  return `, about ${Math.round(left / 60)} minutes left`;
}

function showDocument(text, action) {
  page.document.hidden = false;
  page.documentText.textContent = text;
  page.documentStop.textContent = action;
  page.documentProgress.hidden = action !== "Cancel";
  page.documentDownload.hidden = true;
}

function offer({ text, cut }, name) {
  URL.revokeObjectURL(page.documentDownload.href);
  const blob = new Blob([text], { type: "text/plain;charset=utf-8" });
  const note = cut
    ? ` ${counted(cut, "sentence")} too long for the model: only the ` +
      `beginning was translated.`
    : "";
  showDocument(`The translation is ready.${note}`, "Close");
  page.documentDownload.href = URL.createObjectURL(blob);
  page.documentDownload.download = name;
  page.documentDownload.textContent = `Download ${name}`;
  page.documentDownload.hidden = false;
  page.announcer.textContent = `${name} is ready.`;
}

function closeDocument() {
  runs.document?.abort();
  page.document.hidden = true;
  page.chooseFile.focus();
}

function listenForFiles() {
  const hasFile = ({ dataTransfer }) => dataTransfer?.types.includes("Files");
  addEventListener("dragover", (event) => {
    if (!hasFile(event)) return;
    event.preventDefault();
    page.drop.hidden = false;
  });
  addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) page.drop.hidden = true;
  });
  addEventListener("drop", (event) => {
    if (!hasFile(event)) return;
    event.preventDefault();
    page.drop.hidden = true;
    translateFile(event.dataTransfer.files[0]);
  });
  page.chooseFile.addEventListener("click", () => page.file.click());
  page.file.addEventListener("change", () => {
    translateFile(page.file.files[0]);
    page.file.value = "";
  });
  page.documentStop.addEventListener("click", closeDocument);
}

// ---- Copying, theme, events -----------------------------------------------

async function copy() {
  const text = translationText();
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    copyBySelection(text);
  }
  page.copy.textContent = "Copied";
  page.announcer.textContent = "Copied";
  setTimeout(() => (page.copy.textContent = "Copy"), 1500);
}

/** Copies on pages without HTTPS, which have no clipboard. */
function copyBySelection(text) {
  const box = element("textarea", { value: text });
  document.body.append(box);
  box.select();
  document.execCommand("copy");
  box.remove();
  page.copy.focus();
}

function isDark() {
  const { theme } = document.documentElement.dataset;
  if (theme) return theme === "dark";
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

function showTheme() {
  page.theme.setAttribute("aria-pressed", isDark());
}

function toggleTheme() {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  remember("theme", theme);
  showTheme();
}

function onInput() {
  const { length } = page.source.value;
  page.count.textContent = length ? counted(length, "character") : "";
  showMirror([]);
  translateSoon();
}

const translateSoon = afterPause(translate, TYPING_PAUSE);

function showExamples() {
  const buttons = EXAMPLES.map((text) => {
    const button = element("button", { type: "button", textContent: text });
    button.lang = "en";
    button.addEventListener("click", () => {
      page.source.value = text;
      page.source.focus();
      onInput();
    });
    return button;
  });
  page.examples.replaceChildren(...buttons);
}

function onEscape(event) {
  if (event.key !== "Escape") return;
  attention.release();
  page.source.focus();
}

function followCaret() {
  if (page.source.value !== state.text) return;
  if (state.parts.sentences.length > 1) {
    focusOn(sentenceAt(page.source.selectionStart));
  }
}

function listen() {
  page.source.addEventListener("input", onInput);
  for (const name of ["keyup", "click"]) {
    page.source.addEventListener(name, followCaret);
  }
  for (const name of ["click", "focusin"]) {
    page.target.addEventListener(name, (event) => {
      const node = event.target.closest("[data-sentence]");
      if (node) focusOnSentence(Number(node.dataset.sentence));
    });
  }
  page.target.addEventListener("pointerover", pointAt);
  page.target.addEventListener("pointerleave", pointAt);
  rove(page.target, "[data-sentence]");
  rove(page.alternativesList, "button");
  page.copy.addEventListener("click", copy);
  page.theme.addEventListener("click", toggleTheme);
  page.retry.addEventListener("click", startAgain);
  page.tokenForm.addEventListener("submit", (event) => {
    event.preventDefault();
    keepToken(page.token.value);
    startAgain();
  });
  page.model.addEventListener("change", () => {
    useModel(state.models[page.model.value]);
    translate();
  });
  for (const knob of [page.beamSize, page.alpha, page.maxLength]) {
    knob.addEventListener("input", showKnobs);
    knob.addEventListener("change", () => {
      readSettings();
      translate();
    });
  }
  page.reset.addEventListener("click", () => {
    resetSettings();
    translate();
  });
  addEventListener("keydown", onEscape);
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  scheme.addEventListener("change", showTheme);
  listenForFiles();
}

function showKnobs() {
  page.beamSizeValue.textContent = page.beamSize.value;
  page.alphaValue.textContent = page.alpha.value;
}

/** Shows the alternatives of a sentence that was clicked or tabbed to. */
function focusOnSentence(index) {
  if (index === state.focus) return;
  focusOn(index);
  page.target.querySelector(`[data-sentence="${index}"]`).focus();
}

showExamples();
showTheme();
showPlaceholder();
showMirror([]);
listen();
if (await loadModels()) onInput();
