// Asks the server for a model's answers, and tells the user of trouble.

import { ServerError, makeClient } from "./client.js";
import { counted, page } from "./elements.js";

/** Holds the state of the page, shared by its modules. */
export const state = {
  models: [],
  model: null,
  settings: {},
  text: "", // the text that `parts` was made from
  parts: { sentences: [], separators: [""] },
  focus: 0, // index of the sentence whose alternatives are shown
  beginnings: new Map(), // wanted beginnings of translations, by sentence
  terms: new Map(), // words of the translations, by sentence, with commas
  avoided: new Map(), // words to avoid, likewise
  choices: new Map(), // translations that the user took, by `choiceKey`
};

const runs = {}; // an AbortController for each kind of work
export const request = makeClient(showWaiting);

/** Aborts earlier work of a kind, and returns a signal for the new. */
export function begin(kind) {
  runs[kind]?.abort();
  runs[kind] = new AbortController();
  return runs[kind].signal;
}

/** Aborts the work of a kind. */
export function abort(kind) {
  runs[kind]?.abort();
}

/** Returns the address of a model's answers. */
export function predictPath({ name, version }) {
  return `v1/models/${encodeURIComponent(name)}/versions/${version}:predict`;
}

/** Returns the outputs of a signature, of the chosen model by default. */
export async function predict(signature, inputs, signal, model = state.model) {
  const body = { signature_name: signature, inputs };
  return (await request(predictPath(model), body, signal)).outputs;
}

/** Returns the `sentences` of a text and the `separators` around them. */
export function split(text, signal) {
  const body = { text, language: state.model.source };
  return request("api/split", body, signal);
}

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

/** Removes the message. */
export function hideTrouble() {
  page.trouble.hidden = true;
}

/** Shows an error, unless it says that newer work has begun. */
export function report(error, signal) {
  if (signal?.aborted) return;
  page.target.setAttribute("aria-busy", "false");
  if (error instanceof ServerError && error.status === 401) {
    showTrouble("This server asks for an access token.", "token");
    page.token.focus();
  } else {
    showTrouble(error.message, "error");
  }
}
