// Lists the models, describes the chosen one, and keeps the search settings.

import { counted, element, languageName, page } from "./elements.js";
import { showExamples } from "./examples.js";
import { begin, report, request, state } from "./server.js";

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

let onChange; // translates with another model, or with other settings

let loading; // the result of `readModels`, until it is there

/** Reads the list of models; returns whether there is one to use. */
export function loadModels() {
  loading ??= readModels().finally(() => (loading = undefined));
  return loading;
}

async function readModels() {
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
  const model =
    state.models.find((model) => label(model) === chosen) ??
    state.models.find(({ name }) => name === state.model?.name) ??
    state.models[0];
  page.model.value = state.models.indexOf(model);
  if (!isSame(model, state.model)) useModel(model);
  return true;
}

function isSame(model, other) {
  return model.name === other?.name && model.version === other.version;
}

/**
 * Reads the list of models again if an error says that a version is gone.
 * Returns the version that has taken its place, or undefined. If it is that of
 * the text box, this is translated again.
 */
export async function successorOf(model, error) {
  const chosen = state.model;
  if (error.status !== 404 || !(await loadModels())) return undefined;
  const versions = state.models.filter(({ name }) => name === model.name);
  const isGone = !versions.some((version) => isSame(version, model));
  if (!isGone || !versions.length) return undefined;
  if (!isSame(state.model, chosen)) onChange();
  return versions[0];
}

function useModel(model) {
  state.model = model;
  const source = languageName(model.source);
  const target = languageName(model.target);
  const title = source && target ? `${source} to ${target}` : "Translate";
  page.title.textContent = title;
  document.title = `${title} – keras_transformer`;
  page.sourceLabel.textContent = source || "Text";
  page.targetLabel.textContent = target || "Translation";
  page.source.lang = model.source;
  page.target.lang = model.target;
  showExamples(model.name);
  page.beamSize.max = model.max_beam_size;
  page.maxLength.max = model.max_length;
  for (const node of document.querySelectorAll(".control")) {
    node.hidden = !model.has_control;
  }
  for (const name of ["beginnings", "terms", "avoided"]) state[name].clear();
  page.languageField.hidden = !model.tags.length;
  page.language.replaceChildren(
    new Option("the language of a tag in the text", ""),
    ...model.tags.map((tag) => new Option(languageName(tag), tag)),
  );
  page.language.value = "";
  showSignature(model);
  resetSettings();
}

/** Returns the settings that only some models have. */
function furtherSettings() {
  const { tags, has_control: hasControl } = state.model;
  const { min_length, repetition_penalty } = state.model;
  const no_repeat_ngram_size = Number(page.ngrams.value);
  return {
    ...(tags.length && { target_language: page.language.value }),
    ...(hasControl && { min_length, no_repeat_ngram_size, repetition_penalty }),
  };
}

function showSignature(model) {
  const rows = [["Name", `${model.name}, version ${model.version}`]];
  for (const field of model.signature.split("|")) {
    const colon = field.indexOf(":");
    const name = field.slice(0, colon);
    rows.push([
      SIGNATURE_LABELS[name] ?? name,
      signatureValue(name, field.slice(colon + 1), model),
    ]);
  }
  rows.push(["Longest sentence", counted(model.max_pieces, "word piece")]);
  const items = rows.flatMap(([name, value]) => [
    element("dt", { textContent: name }),
    element("dd", { textContent: value }),
  ]);
  page.about.replaceChildren(...items);
}

function signatureValue(name, value, { source, target }) {
  const words = { pre: "before each sublayer", post: "after each sublayer" };
  if (name === "norm") return words[value] ?? value;
  if (name === "tied" && value === "yes") return "source, target and output";
  if (name === "tied") return "target and output";
  if (name === "vocab") {
    const [, kind, size] = /^(\w+)-(\d+)$/.exec(value) ?? [];
    if (size) return `${counted(+size, "piece")} (${kind.toUpperCase()})`;
  }
  if (name === "languages" && source && target) {
    return `${languageName(source)} to ${languageName(target)}`;
  }
  return value;
}

function resetSettings() {
  const { beam_size, alpha, max_length } = state.model;
  page.beamSize.value = beam_size;
  page.alpha.value = alpha;
  page.maxLength.value = max_length;
  page.ngrams.value = state.model.no_repeat_ngram_size;
  state.settings = { beam_size, alpha, max_length, ...furtherSettings() };
  showSettings();
}

function readSettings() {
  const most = Number(page.maxLength.max);
  const length = Math.round(Number(page.maxLength.value)) || most;
  page.maxLength.value = Math.min(Math.max(length, 2), most);
  const ngrams = Math.round(Number(page.ngrams.value)) || 0;
  page.ngrams.value = Math.min(Math.max(ngrams, 0), page.ngrams.max);
  state.settings = {
    beam_size: Number(page.beamSize.value),
    alpha: Number(page.alpha.value),
    max_length: Number(page.maxLength.value),
    ...furtherSettings(),
  };
  showSettings();
}

/** Returns whether the settings are those of the model's export. */
export function hasOwnSettings() {
  const { model, settings } = state;
  const own = { target_language: "", ...model };
  return Object.keys(settings).every((name) => settings[name] === own[name]);
}

function showSettings() {
  page.beamSizeValue.textContent = state.settings.beam_size;
  page.alphaValue.textContent = state.settings.alpha;
  page.reset.disabled = hasOwnSettings();
}

function showKnobs() {
  page.beamSizeValue.textContent = page.beamSize.value;
  page.alphaValue.textContent = page.alpha.value;
}

/** Calls `translate` after a change of the model or of the settings. */
export function listenToModels(translate) {
  onChange = translate;
  page.model.addEventListener("change", () => {
    useModel(state.models[page.model.value]);
    onChange();
  });
  const { beamSize, alpha, maxLength, language, ngrams } = page;
  for (const knob of [beamSize, alpha, maxLength, language, ngrams]) {
    knob.addEventListener("input", showKnobs);
    knob.addEventListener("change", () => {
      readSettings();
      onChange();
    });
  }
  page.reset.addEventListener("click", () => {
    resetSettings();
    onChange();
  });
}
