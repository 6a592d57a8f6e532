// Shows the translation of a file: its progress, and the result.

import {
  readText,
  translateText,
  translatedName,
} from "./documents.js";
import { counted, page } from "./elements.js";
import { hasOwnSettings, successorOf } from "./models.js";
import { searchOf } from "./sentences.js";
import {
  abort,
  begin,
  predict,
  report,
  split,
  state,
} from "./server.js";

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
  let { model } = state;
  return async function translate(text) {
    const search = settings
      ? searchOf(text, model, settings)
      : ["serving_default", { text }];
    try {
      const outputs = await predict(...search, signal, model);
      const { translation, truncated } = outputs;
      const first = settings ? translation.map((row) => row[0]) : translation;
      return { translations: first, truncated };
    } catch (error) {
      const successor = await successorOf(model, error);
      if (!successor) throw error;
      model = successor;
      return translate(text);
    }
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
  abort("document");
  page.document.hidden = true;
  page.chooseFile.focus();
}

/** Translates files that are dropped or chosen. */
export function listenForFiles() {
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
