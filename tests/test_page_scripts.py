"""Runs modules of the server's page in Node, where there is one."""

import json
import pathlib
import shutil
import subprocess

import numpy as np
import pytest
import tensorflow as tf

import keras_transformer
from keras_transformer.inference.alignment import align
from keras_transformer.inference.piece_words import weights_of_words, words_of

pytestmark = pytest.mark.programs
PAGE = pathlib.Path(keras_transformer.__file__).parent / "serve" / "page"


@pytest.fixture
def run(tmp_path):
    """Returns a function that runs a script beside the page's modules."""
    if shutil.which("node") is None:
        pytest.skip("Node is not installed")
    shutil.copytree(PAGE, tmp_path / "page")
    (tmp_path / "page" / "package.json").write_text('{"type": "module"}')

    def run(script):
        (tmp_path / "page" / "script.js").write_text(script)
        found = subprocess.run(
            ["node", tmp_path / "page" / "script.js"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert found.returncode == 0, found.stderr
        return json.loads(found.stdout)

    return run


def test_sentences_of_chinese_become_words_with_spaces(run):
    """As `SplitText.joined` does it."""
    script = """
import { join, separatorsOf } from "./documents.js";
const whole = (sentences, separators, translations) =>
  join(separatorsOf({ sentences, separators }, translations), translations);
console.log(JSON.stringify([
  whole(["我来了。", "你好吗？"], ["", "", "\\n"], ["I came.", "How are you?"]),
  whole(["我来了。", "你好。"], ["", "", ""], ["来た。", "今日は。"]),
  whole(["他说：“你好!”", "我走了。"], ["", "", ""], ["“Hello!”", "I left."]),
  whole(["Yes.", "No."], [" ", " ", ""], ["Ja.", "Nein."]),
  whole([], ["  "], []),
]));
"""
    assert run(script) == [
        "I came. How are you?\n",
        "来た。今日は。",
        "“Hello!” I left.",
        " Ja. Nein.",
        "  ",
    ]


def test_the_page_and_python_join_pieces_to_the_same_words(run):
    sentences = [
        ["▁Vi", "en", "na", "▁", "1", ".", "5", "▁<", "<0xC3>", "<0xA9>", ")"],
        ["▁", "</s>"],
        ["x", "▁", "a", "▁", ".", "(", "b", "…", "<0xE2>", "▁!", "</s>"],
        ["▁“", "Ja", "!”", "▁$", "5", "-", "x", "-", "</s>"],
    ]
    script = f"""
import {{ groupPieces, groupWeights }} from "./pieces.js";
const sentences = {json.dumps(sentences)};
console.log(JSON.stringify(sentences.map((pieces) => {{
  const groups = groupPieces(pieces, false);
  const matrix = pieces.map((_, t) => pieces.map((_, s) => 2 * t + s * s));
  return [
    groups.map(({{ text, end, indices }}) => [end ? "</s>" : text, indices]),
    groupWeights(matrix, groups, groups),
  ];
}})));
"""
    for pieces, (groups, weights) in zip(sentences, run(script), strict=True):
        words = words_of(pieces)
        assert [[word.text, word.places] for word in words] == groups
        places = np.arange(len(pieces))
        matrix = 2 * places[:, None] + places**2
        found = weights_of_words(matrix, words, words)
        np.testing.assert_allclose(found, weights)


def test_the_page_and_python_link_the_same_words(run):
    """Words of several pieces, a tag, and the end, which belongs to nothing."""
    source = [">>de<<", "▁Vi", "en", "na", "▁is", "▁far", "</s>"]
    target = ["▁W", "ien", "▁ist", "▁weit", "▁weg", "</s>"]
    matrices = np.random.default_rng(3).random((20, 6, 7)).round(4)
    script = f"""
import {{ alignGroups, groupPieces }} from "./pieces.js";
const target = groupPieces({json.dumps(target)}, false);
const source = groupPieces({json.dumps(source)}, false);
const matrices = {json.dumps(matrices.tolist())};
console.log(JSON.stringify(matrices.map((matrix) =>
  alignGroups(matrix, target, source))));
"""
    numbers = [[-1, 0, 0, 0, 1, 2, -1]] * 20, [[0, 0, 1, 2, 3, -1]] * 20
    attention = [matrices[:, None].astype("float32")]
    expected = align(attention, *map(tf.constant, numbers)).numpy()
    for found, line in zip(np.array(run(script)), expected, strict=True):
        assert not found[-1].any()
        links = [f"{s - 1}-{t}" for t, s in np.argwhere(found)]
        assert sorted(links) == line.decode().split()


def test_a_long_text_keeps_all_of_its_translations(run):
    script = """
import fs from "node:fs";
fs.writeFileSync(new URL("./server.js", import.meta.url), `
  export const state = { model: { name: "a", version: "1" }, settings: {},
    choices: new Map(), beginnings: new Map(), terms: new Map(),
    avoided: new Map(), parts: {} };
  export const predict = async (_, { text }) => ({
    translation: text.map((x) => [x.toUpperCase()]),
    score: text.map(() => [0]),
    truncated: text.map(() => false),
    incomplete: text.map(() => [false]),
  });
`);
const { state } = await import("./server.js");
const { hold, nBest, resultOf, translations } = await import("./sentences.js");
const counts = [];
for (const [first, last] of [[0, 1000], [500, 3000], [0, 1000]]) {
  const texts = Array.from({ length: last - first }, (_, i) => `s${first + i}`);
  hold(texts);
  const missing = texts.filter((text) => !resultOf(text));
  for (const text of missing) await nBest([text]);
  state.parts = { sentences: texts };
  const lost = translations().filter((text) => text === "…");
  counts.push([missing.length, lost.length]);
}
console.log(JSON.stringify(counts));
"""
    asked, lost = zip(*run(script), strict=True)
    assert asked[:2] == (1000, 2000)
    assert lost == (0, 0, 0)


def test_a_token_is_kept_where_the_browser_keeps_nothing(run):
    script = """
const refuse = () => { throw new Error("SecurityError"); };
globalThis.sessionStorage = { getItem: refuse, setItem: refuse };
const { keepToken, makeClient } = await import("./client.js");
const sent = [];
globalThis.fetch = async (path, { headers }) => {
  sent.push(headers.Authorization ?? null);
  return { ok: true, status: 200, json: async () => ({}) };
};
const request = makeClient(() => sent.push("waits"));
await request("/a");
keepToken("secret");
await request("/a");
console.log(JSON.stringify(sent));
"""
    sent = [x for x in run(script) if x != "waits"]
    assert sent == [None, "Bearer secret"]


def test_the_page_goes_on_with_the_version_that_takes_the_place_of_its(run):
    script = """
import fs from "node:fs";
fs.writeFileSync(new URL("./elements.js", import.meta.url), `
  const make = () => ({
    children: [], dataset: {}, classList: { add() {}, remove() {} },
    listeners: {}, setAttribute() {}, focus() {}, append() {},
    style: { setProperty() {} }, querySelectorAll: () => [],
    addEventListener(name, listener) { this.listeners[name] = listener; },
    replaceChildren(...nodes) { this.children = nodes; },
    get selectedOptions() {
      return this.children.filter(({ value }) => value === this.value);
    },
  });
  export const page = new Proxy({}, {
    get: (made, name) => (made[name] ??= make()),
  });
  export const element = (_, properties) => ({ ...make(), ...properties });
  export const counted = (count, noun) => count + noun;
  export const languageName = (code) => code;
  export const afterPause = () => () => {};
  export const setTabStop = () => {};
`);
fs.writeFileSync(new URL("./explanation.js", import.meta.url), `
  export const explainSoon = () => {};
  export const showMirror = () => {};
`);
let current = "1";
let file;
let tags = [];
const languages = [];
const search = { beam_size: 4, alpha: 0.6, max_length: 9, max_beam_size: 9 };
const none = { signature: "", tags: [] };
const other = { name: "a", version: "1", ...none, ...search };
globalThis.document = { querySelectorAll: () => [] };
globalThis.addEventListener = () => {};
globalThis.Option = function (textContent, value) {
  return { textContent, value };
};
const pause = (milliseconds = 400) => new Promise(
  (resolve) => setTimeout(resolve, milliseconds),
);
URL.createObjectURL = (blob) => (file = blob);
globalThis.fetch = async (path, { body }) => {
  const answer = (value, status = 200) => new Response(
    JSON.stringify(value), { status },
  );
  const { signature_name, inputs, text } = JSON.parse(body ?? "{}");
  if (path === "api/split") {
    await pause(50);
    return answer({ sentences: [text], separators: ["", ""] });
  }
  if (path === "api/models") {
    await pause(50);
    const model = { ...other, name: "b", version: current, tags };
    return answer({ models: [other, model] });
  }
  if (path !== `v1/models/b/versions/${current}:predict`) {
    return answer({ error: "Servable not found" }, 404);
  }
  languages.push(inputs.target_language ?? null);
  const found = inputs.text.map((text) => text + current);
  const isList = signature_name === "n_best";
  return answer({ outputs: {
    translation: isList ? found.map((text) => [text]) : found,
    score: found.map(() => [0]),
    truncated: found.map(() => false),
    incomplete: found.map(() => [false]),
  } });
};
const { page } = await import("./elements.js");
const { listenForFiles } = await import("./files.js");
const { listenToModels, loadModels } = await import("./models.js");
const { translationText } = await import("./sentences.js");
const { translate } = await import("./translation.js");
listenToModels(translate);
listenForFiles();
await loadModels();
page.model.value = 1;
page.model.listeners.change();
const shown = [];
for (current of ["1", "2"]) {
  page.source.value = `x${current}-`;
  await translate();
  await pause();
  shown.push(translationText());
}
const translateFile = async () => {
  page.file.files = [new File(["y"], "y.txt")];
  page.file.listeners.change();
};
current = "3";
translateFile();
await translate(); // both find that the version is gone
await pause();
const { textContent } = page.troubleText; // an error
shown.push(await file.text(), translationText(), textContent ?? null);

// The text box has another model, with settings of its own.
translateFile();
await pause(25); // the file is read
page.model.value = 0;
page.model.listeners.change();
page.beamSize.value = 2;
page.beamSize.listeners.change();
current = "4";
await pause();
shown.push(await file.text(), page.beamSize.value);

// A model of several languages is always asked for one, or for none in words.
tags = ["de", "bt"];
current = "5";
await loadModels();
page.model.value = 1;
page.model.listeners.change();
await pause();
page.language.value = "de";
page.language.listeners.change();
await pause();
shown.push(page.language.children.length, new Set(languages.slice(0, -2)).size);
console.log(JSON.stringify([...shown, ...languages.slice(-2)]));
"""
    expected = ["x1-1", "x2-2", "y3", "x2-3", None, "y4", 2, 3, 1, "", "de"]
    assert run(script) == expected
