// Starts the page and connects its controls.

import { keepToken } from "./client.js";
import { afterPause, counted, element, page, rove } from "./elements.js";
import { attention, pointAt, showMirror } from "./explanation.js";
import { listenForFiles } from "./files.js";
import { listenToModels, loadModels } from "./models.js";
import { sentenceAt, translationText } from "./sentences.js";
import { hideTrouble, state } from "./server.js";
import {
  focusOn,
  readWishes,
  showPlaceholder,
  translate,
} from "./translation.js";

const TYPING_PAUSE = 180; // milliseconds

async function startAgain() {
  hideTrouble();
  if (await loadModels()) await translate();
}

function remember(key, value) {
  try {
    localStorage.setItem(key, value);
  } catch {
    // The choice holds until the page is closed.
  }
}

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
  for (const node of [page.beginning, page.terms, page.avoided]) {
    node.addEventListener("input", () => {
      readWishes();
      translateSoon();
    });
  }
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
  listenToModels(translate);
  addEventListener("keydown", onEscape);
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  scheme.addEventListener("change", showTheme);
  listenForFiles();
}

/** Shows the alternatives of a sentence that was clicked or tabbed to. */
function focusOnSentence(index) {
  if (index === state.focus) return;
  focusOn(index);
  page.target.querySelector(`[data-sentence="${index}"]`).focus();
}

showTheme();
showPlaceholder();
showMirror([]);
listen();
if (await loadModels()) onInput();
