"""Runs modules of the server's page in Node, where there is one."""

import json
import pathlib
import shutil
import subprocess

import pytest

import keras_transformer

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


def test_a_long_text_keeps_all_of_its_translations(run):
    script = """
import fs from "node:fs";
fs.writeFileSync(new URL("./server.js", import.meta.url), `
  export const state = { model: { name: "a", version: "1" }, settings: {},
    choices: new Map(), parts: {} };
  export const predict = async (_, { text }) => ({
    translation: text.map((x) => [x.toUpperCase()]),
    score: text.map(() => [0]),
    truncated: text.map(() => false),
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
