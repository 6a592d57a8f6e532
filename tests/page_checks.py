"""Checks the page of the server in a browser.

`make test-page` runs these with Chromium. `PAGE_URL` may name a server that
already runs, and `SCREENSHOTS` a folder for images of the page.
"""

import json
import math
import os
import pathlib
import shutil
import urllib.request

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Error, expect, sync_playwright
from serving import Server

from keras_transformer.inference.piece_words import words_of

expect.set_options(timeout=30_000)  # a busy machine may take its time

MODEL = os.environ.get("PAGE_MODEL", "saved_models/demo")
SCREENSHOTS = os.environ.get("SCREENSHOTS")
NO_BROWSER = (
    "These checks need Chromium. Install it with `apt-get install chromium` "
    "or `.venv/bin/python -m playwright install chromium`."
)
SENTENCE = "The train to Vienna leaves at half past six from platform 12."
TWO = "Room 7 is on the third floor.\n\n  My sister bought a lamp for €49.50."
DESKTOP, PHONE = (1280, 900), (360, 740)


@pytest.fixture(scope="session")
def url(tmp_path_factory):
    """Returns the address of a server, by default one that it starts."""
    if "PAGE_URL" in os.environ:
        yield os.environ["PAGE_URL"].rstrip("/")
        return
    log = tmp_path_factory.mktemp("logs") / "server.txt"
    server = Server(MODEL, log, "--no-access-log")
    yield f"http://127.0.0.1:{server.port}"
    server.stop()


@pytest.fixture(scope="session")
def browser():
    with sync_playwright() as playwright:
        try:
            chromium = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox"]
            )
        except Error as error:
            pytest.exit(f"{NO_BROWSER}\n{error}", returncode=1)
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser, url):
    """Returns a function that opens the page; it must log no errors."""
    contexts, errors = [], []

    def log(message):
        is_status = "Failed to load resource" in message.text
        if message.type == "error" and not is_status:
            errors.append(message.text)

    def open_page(text="", size=DESKTOP, **options):
        width, height = size
        context = browser.new_context(
            viewport={"width": width, "height": height}, **options
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", log)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(url)
        expect(page.locator("#title")).to_contain_text(" to ")
        if text:
            page.fill("#source", text)
            expect(page.locator("#lines .word").first).to_be_visible()
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not errors


@pytest.fixture(scope="session")
def api(url):
    """Returns a function that asks the server without the page."""

    def post(path, body):
        request = urllib.request.Request(
            f"{url}/{path}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    with urllib.request.urlopen(f"{url}/api/models") as answer:
        model = json.load(answer)["models"][0]

    def ask(signature, **inputs):
        path = f"v1/models/{model['name']}/versions/{model['version']}:predict"
        body = {"signature_name": signature, "inputs": inputs}
        return post(path, body)["outputs"]

    settings = {
        name: model[name] for name in ("beam_size", "alpha", "max_length")
    }
    ask.model = model
    ask.n_best = lambda text: ask("n_best", text=[text], **settings)
    ask.split = lambda text: post(
        "api/split", {"text": text, "language": model["source"]}
    )
    return ask


def translation_of(text, api):
    """Returns the translation of a text of several sentences."""
    parts = api.split(text)
    answer = api("serving_default", text=parts["sentences"])
    return "".join(
        separator + sentence
        for separator, sentence in zip(
            parts["separators"], [*answer["translation"], ""], strict=True
        )
    )


def weights_of(text, api, layer=None, head=None, kind="decoder"):
    """Returns the pieces and the weights `[target][source]` of a sentence; for
    the encoder the pieces of the source take the place of the target's."""
    answer = api("explain", text=[text])
    if kind == "encoder":
        answer["target_pieces"] = answer["source_pieces"]
        answer["attention"] = answer["encoder_attention"]
    source = [piece for piece in answer["source_pieces"][0] if piece]
    target = [piece for piece in answer["target_pieces"][0] if piece]
    chosen = [
        weights
        for n, heads in enumerate(answer["attention"][0])
        for h, weights in enumerate(heads)
        if layer in (None, n) and head in (None, h)
    ]
    means = [
        [sum(w[t][s] for w in chosen) / len(chosen) for s in range(len(source))]
        for t in range(len(target))
    ]
    return source, target, means


def is_predict(signature):
    """Returns a filter of requests, by the signature in their body."""
    name = f'"signature_name":"{signature}"'
    return lambda request: name in (request.post_data or "")


def answer_first(page, signature, times=1, **answer):
    """Answers the first requests for a signature; lets the others through.

    Without an answer, the connection is refused.
    """
    left = [times]

    def handle(route):
        if not is_predict(signature)(route.request) or not left[0]:
            return route.continue_()
        left[0] -= 1
        return route.fulfill(**answer) if answer else route.abort()

    page.route("**/v1/models/**", handle)


def show_heat_map(page):
    page.get_by_text("Heat map", exact=True).click()
    expect(page.locator("#heat table")).to_be_visible()


def assert_no_horizontal_scroll(page):
    script = "document.documentElement.scrollWidth <= innerWidth"
    assert page.evaluate(script)


# ---- Translating ------------------------------------------------------------


def test_the_translation_appears_while_typing(open_page, api):
    page = open_page()
    page.locator("#source").press_sequentially(SENTENCE, delay=15)
    best = api("serving_default", text=[SENTENCE])["translation"][0]
    expect(page.locator("#target")).to_have_text(best)
    expect(page.locator("#announcer")).to_have_text(best)
    expect(page.locator("#count")).to_have_text(f"{len(SENTENCE)} characters")


def test_an_example_is_translated(open_page, api):
    page = open_page()
    if api.model["name"] not in ("demo", "captions-en-de"):
        pytest.skip("other models have no examples")
    example = page.locator("#examples button").nth(2)
    text = example.text_content()
    example.click()
    expect(page.locator("#source")).to_have_value(text)
    expect(page.locator("#target")).to_have_text(translation_of(text, api))


def test_paragraphs_and_spaces_are_kept(open_page, api):
    text = f"\n{TWO} \n\n{SENTENCE}\n"
    page = open_page(text)
    expected = translation_of(text, api)
    page.wait_for_function(
        "text => document.querySelector('#target').textContent === text",
        arg=expected,
    )


def test_only_new_sentences_are_sent(open_page):
    page = open_page(TWO)
    with page.expect_request(is_predict("n_best")) as sent:
        page.fill("#source", f"{TWO} {SENTENCE}")
    assert json.loads(sent.value.post_data)["inputs"]["text"] == [SENTENCE]


def test_stale_answers_are_dropped(open_page, api):
    """Holds the first answer back, until the second text has been typed."""
    page = open_page()
    held, dropped = [], []
    first, second = SENTENCE, "Room 7 is on the third floor."

    def hold(route):
        if json.dumps(first)[1:-1] in route.request.post_data:
            held.append(route)
        else:
            route.continue_()

    page.route("**/v1/models/**", hold)
    page.on("requestfailed", lambda request: dropped.append(request))
    with page.expect_request(is_predict("n_best")):
        page.fill("#source", first)
    page.fill("#source", second)
    best = api("serving_default", text=[second])["translation"][0]
    expect(page.locator("#target")).to_have_text(best)
    assert held
    assert held[0].request in dropped
    page.wait_for_timeout(300)
    expect(page.locator("#target")).to_have_text(best)


def test_clearing_the_text_clears_the_translation(open_page):
    page = open_page(SENTENCE)
    page.fill("#source", "")
    expect(page.locator("#target")).to_contain_text("appears here")
    expect(page.locator("#attention")).to_be_hidden()
    expect(page.locator("#alternatives")).to_be_hidden()
    expect(page.locator("#copy")).to_be_disabled()


def test_a_text_that_was_cut_is_named(open_page, api):
    # A piece each; longer than 1,000 characters, it would be divided.
    text = "7" * (api.model["max_pieces"] + 5)
    page = open_page()
    page.fill("#source", text)
    expect(page.locator("#cut")).to_contain_text("too long", timeout=60_000)


def test_copy(open_page, api):
    page = open_page(TWO, permissions=["clipboard-read", "clipboard-write"])
    page.click("#copy")
    expect(page.locator("#copy")).to_have_text("Copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == translation_of(TWO, api)


# ---- Alternatives and settings ----------------------------------------------


def test_an_alternative_is_taken(open_page, api):
    page = open_page(SENTENCE)
    answer = api.n_best(SENTENCE)
    buttons = page.locator("#alternatives-list button")
    expect(buttons).to_have_count(len(set(answer["translation"][0])))
    score = f"{answer['score'][0][1]:.2f}".replace("-", "−")
    expect(buttons.nth(1)).to_contain_text(score)
    buttons.nth(1).click()
    second = answer["translation"][0][1]
    expect(page.locator("#target")).to_have_text(second)
    expect(buttons.nth(1)).to_have_attribute("aria-pressed", "true")
    note = page.locator("#attention-note")
    expect(note).to_contain_text("You took an alternative")
    expect(note).to_contain_text(answer["translation"][0][0])
    buttons.nth(0).focus()
    page.keyboard.press("Enter")
    expect(page.locator("#target")).to_have_text(answer["translation"][0][0])
    expect(note).to_be_hidden()


def test_alternatives_follow_the_sentence_in_focus(open_page, api):
    page = open_page(TWO)
    first, second = api.split(TWO)["sentences"]
    note = page.locator("#alternatives-note")
    expect(note).to_contain_text(second)
    page.locator("#target .sentence").first.click()
    expect(note).to_contain_text(first)
    other = api.n_best(first)["translation"][0][1]
    page.locator("#alternatives-list button").nth(1).click()
    expect(page.locator("#target .sentence").first).to_have_text(other)
    best = api("serving_default", text=[second])["translation"][0]
    expect(page.locator("#target .sentence").last).to_have_text(best)
    page.fill("#source", f"{TWO} {SENTENCE}")
    expect(page.locator("#target .sentence")).to_have_count(3)
    expect(page.locator("#target .sentence").first).to_have_text(other)


def test_settings_are_sent_and_reset(open_page, api):
    page = open_page(SENTENCE)
    page.get_by_text("Search settings").click()
    expect(page.locator("#reset")).to_be_disabled()
    with page.expect_request(is_predict("n_best")) as sent:
        page.locator("#beam-size").fill("1")
    inputs = json.loads(sent.value.post_data)["inputs"]
    assert inputs["beam_size"] == 1
    assert inputs["alpha"] == api.model["alpha"]
    assert inputs["max_length"] == api.model["max_length"]
    expect(page.locator("#alternatives-note")).to_contain_text("larger beam")
    page.click("#reset")
    expect(page.locator("#beam-size")).to_have_value(
        str(api.model["beam_size"])
    )
    with page.expect_request(is_predict("n_best")) as sent:
        page.locator("#alpha").fill("1.2")
    assert json.loads(sent.value.post_data)["inputs"]["alpha"] == 1.2
    with page.expect_request(is_predict("n_best")) as sent:
        page.fill("#max-length", "5")
        page.locator("#max-length").blur()
    assert json.loads(sent.value.post_data)["inputs"]["max_length"] == 5
    expect(page.locator("#attention-note")).to_contain_text("Your settings")


def test_the_model_is_described(open_page, api):
    page = open_page()
    page.get_by_text("About this model").click()
    about = page.locator("#about")
    expect(about).to_contain_text(f"{api.model['max_pieces']} word pieces")
    for field in api.model["signature"].split("|"):
        if field.startswith("d_model:"):
            expect(about).to_contain_text(field.removeprefix("d_model:"))


def test_a_model_without_languages(open_page, api):
    page = open_page()
    models = [{**api.model, "source": "", "target": ""}]
    page.route(
        "**/api/models", lambda route: route.fulfill(json={"models": models})
    )
    page.reload()
    expect(page.locator("#model option")).to_have_count(1)
    expect(page.locator("#title")).to_have_text("Translate")
    page.fill("#source", SENTENCE)
    expect(page.locator("#lines .word").first).to_be_visible()
    page.set_input_files("#file", files=[text_file("a.txt", b"Room 7.")])
    expect(page.locator("#document-download")).to_contain_text(
        "a.translated.txt"
    )


# ---- Attention --------------------------------------------------------------


def test_a_word_shows_its_lines(open_page):
    page = open_page(SENTENCE)
    words = page.locator("[aria-label='Words of the translation'] .word")
    words.nth(3).hover()
    lines = page.locator("#lines path.current")
    assert 0 < lines.count() < page.locator("#lines path").count()
    expect(page.locator("#caption")).to_contain_text("looked at")
    assert page.locator("#mirror .tint").count() > 5
    page.mouse.move(0, 0)
    expect(lines).to_have_count(0)
    page.locator("#target .tint").nth(3).hover()
    expect(words.nth(3)).to_have_class("word starts current")
    source = page.locator("[aria-label='Words of the source'] .word")
    source.nth(2).focus()
    expect(page.locator("#caption")).to_contain_text("was looked at by")


def test_the_words_of_the_source_look_at_one_another(open_page):
    page = open_page(SENTENCE)
    assert page.locator("#target .tint").count() > 5
    page.select_option("#attention-kind", "encoder")
    expect(page.locator("#caption")).to_contain_text("lower row looks")
    expect(page.locator("#target .tint")).to_have_count(0)
    looking = page.locator("[aria-label='Source words that look'] .word")
    seen = page.locator("[aria-label='Source words that are looked at'] .word")
    assert looking.all_text_contents() == seen.all_text_contents()
    looking.nth(4).focus()
    expect(page.locator("#caption")).to_contain_text("“leaves” looked at")
    assert page.locator("#lines path.current").count() > 0
    current = page.locator("#mirror .tint.current")
    expect(current).to_have_text("leaves")
    weights = page.locator("#mirror .tint").evaluate_all(
        "nodes => nodes.map(x => Number(x.style.getPropertyValue('--weight')))"
    )
    assert 0.5 < sum(weights) < 1.01  # without the end, which has no place
    seen.nth(2).focus()
    expect(page.locator("#caption")).to_contain_text("was looked at by")
    page.select_option("#attention-kind", "decoder")
    assert page.locator("#target .tint").count() > 5


@pytest.mark.parametrize("kind", ["decoder", "encoder"])
@pytest.mark.parametrize(("layer", "head"), [(None, None), (0, None), (1, 0)])
def test_weights_are_those_of_the_server(open_page, api, layer, head, kind):
    """Compares the heat map of word pieces with the signature `explain`."""
    source, target, weights = weights_of(SENTENCE, api, layer, head, kind)
    page = open_page(SENTENCE)
    page.select_option("#attention-kind", kind)
    show_heat_map(page)
    page.check("#by-piece")
    page.select_option("#layer", "" if layer is None else str(layer + 1))
    page.select_option("#head", "" if head is None else str(head + 1))
    expect(page.locator("#heat thead th")).to_have_count(len(source))
    expect(page.locator("#heat tbody th")).to_have_count(len(target))
    cells = page.locator("#heat tbody td").all_text_contents()
    shown = [int(cell.removesuffix(" %")) for cell in cells]
    expected = [100 * weight for row in weights for weight in row]
    assert shown == pytest.approx(expected, abs=0.51)


def test_a_translation_begins_as_the_user_types(open_page):
    page = open_page(TWO)
    target = page.locator("#target")
    expect(target).to_contain_text("Zimmer 7 ist")
    whole = target.text_content()
    page.locator("#target .sentence").nth(1).click()
    page.get_by_label("Begin with").fill("Eine Lampe")
    second = page.locator("#target .sentence").nth(1)
    expect(second).to_contain_text("Eine Lampe")
    assert second.text_content().startswith("Eine Lampe")
    assert "Zimmer 7 ist im dritten Stock." in target.text_content()
    expect(page.locator("#alternatives-list button").first).to_contain_text(
        "Eine Lampe"
    )
    for text in page.locator(".alternative-text").all_text_contents():
        assert text.startswith("Eine Lampe")
    if SCREENSHOTS:
        page.screenshot(path=pathlib.Path(SCREENSHOTS, "beginning.png"))
    # It belongs to the sentence, and the other one has none.
    page.locator("#target .sentence").nth(0).click()
    expect(page.locator("#beginning")).to_have_value("")
    page.locator("#target .sentence").nth(1).click()
    expect(page.locator("#beginning")).to_have_value("Eine Lampe")
    page.locator("#beginning").fill("")
    expect(target).to_have_text(whole)


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_a_translation_has_the_words_that_the_user_types(open_page, size):
    """The keyboard is enough; the page says which words it could not use."""
    page = open_page("My sister bought a beautiful lamp for €49.50.", size)
    target = page.locator("#target")
    expect(target).to_contain_text("Lampe")
    page.get_by_label("Use these words").focus()
    page.keyboard.type("alte, Uhr")
    expect(target).to_contain_text("alte Uhr")
    page.keyboard.press("Tab")
    page.keyboard.type("Uhr")
    expect(target).not_to_contain_text("Uhr")
    expect(target).to_contain_text("alte")
    expect(page.locator("#cut")).to_contain_text("want them: Uhr.")
    assert page.evaluate("document.documentElement.scrollWidth") == size[0]
    if SCREENSHOTS:
        name = f"terms_{size[0]}.png"
        page.screenshot(path=pathlib.Path(SCREENSHOTS, name), full_page=True)


def test_a_translation_repeats_no_pieces(open_page, api):
    page = open_page(SENTENCE)
    requests = []
    page.on("request", lambda request: requests.append(request.post_data))
    page.locator("summary", has_text="Search settings").click()
    page.get_by_label("No repeated pieces").fill("1")
    page.get_by_label("No repeated pieces").press("Tab")
    expect(page.locator("#reset")).to_be_enabled()
    expect(page.locator("#target")).to_have_attribute("aria-busy", "false")
    asked = [json.loads(x) for x in requests if x and "control" in x]
    assert asked[-1]["inputs"]["no_repeat_ngram_size"] == 1
    page.locator("#reset").click()
    expect(page.locator("#ngrams")).to_have_value("0")


def test_words_that_belong_together_are_shown(open_page, api):
    page = open_page(SENTENCE)
    page.select_option("#attention-kind", "alignment")
    expect(page.locator("#layer")).to_be_disabled()
    word = page.locator("#target .tint", has_text="Wien")
    word.hover()
    caption = page.locator("#caption")
    expect(caption).to_contain_text("“Wien” belongs to “Vienna”. Probability: ")
    tinted = page.locator("#mirror .tint").evaluate_all(
        "nodes => nodes.filter("
        "x => Number(x.style.getPropertyValue('--weight')) > 0)"
        ".map(x => x.textContent)"
    )
    assert tinted == ["Vienna"]
    if SCREENSHOTS:
        page.screenshot(path=pathlib.Path(SCREENSHOTS, "alignment.png"))
    page.select_option("#attention-kind", "decoder")
    expect(page.locator("#layer")).to_be_enabled()


def test_words_of_which_the_model_is_unsure_are_dotted(open_page, api):
    text = "My llama was lent to a friendly duke."  # no word of the corpus
    answer = api("explain", text=[text])
    pieces = [piece for piece in answer["target_pieces"][0] if piece]
    expected = [
        word.text
        for word in words_of(pieces)[:-1]
        if sum(answer["log_probs"][0][i] for i in word.places) < math.log(0.5)
    ]
    assert expected
    page = open_page(text)
    expect(page.locator("#caption")).to_contain_text("unsure of dotted words")
    dotted = page.locator("#target .unsure")
    assert dotted.all_text_contents() == expected
    if SCREENSHOTS:
        page.screenshot(path=pathlib.Path(SCREENSHOTS, "unsure.png"))
    sure = open_page(SENTENCE)
    expect(sure.locator("#caption")).not_to_contain_text("unsure")


def test_words_have_the_weights_of_their_pieces(open_page):
    page = open_page(SENTENCE)
    show_heat_map(page)
    rows = page.locator("#heat tbody tr").all()
    assert len(rows) > 5
    for row in rows:
        cells = row.locator("td").all_text_contents()
        total = sum(int(cell.removesuffix(" %")) for cell in cells)
        assert total == pytest.approx(100, abs=0.5 * len(cells))
    page.locator("#heat tbody td").nth(20).hover()
    expect(page.locator("#caption")).to_contain_text("looked at")


@pytest.mark.parametrize(
    "text",
    ["日本 <b>Hi</b> & 'x' \"y\" (e.g. this?!)…", "7", "...", "\u200b", "🚂 é"],
)
def test_any_text_is_shown(open_page, api, text):
    page = open_page()
    page.fill("#source", text)
    page.wait_for_timeout(1000)
    expect(page.locator("#target")).to_have_attribute("aria-busy", "false")
    shown = page.locator("#target").text_content()
    assert shown == translation_of(text, api) or "appears here" in shown


# ---- Files ------------------------------------------------------------------


def many_sentences(count):
    lines = [f"Room {n} is on the third floor." for n in range(count)]
    return "\n".join(lines) + "\n\nThe end.\n"


def test_a_file_is_translated(open_page, api, tmp_path):
    text = many_sentences(70)
    path = tmp_path / "letter.txt"
    path.write_text(text)
    page = open_page()
    bars = []
    page.route(
        "**/v1/models/**",
        lambda route: (
            bars.append(page.locator("#document-progress").is_visible()),
            route.continue_(),
        ),
    )
    page.set_input_files("#file", path)
    link = page.locator("#document-download")
    expect(link).to_have_text(
        f"Download letter.{api.model['target']}.txt", timeout=60_000
    )
    assert bars == [True] * len(bars)
    assert len(bars) == 3
    with page.expect_download() as download:
        link.click()
    assert download.value.suggested_filename == "letter.de.txt"
    saved = pathlib.Path(download.value.path()).read_text("utf-8")
    assert saved == translation_of(text, api)
    page.get_by_role("button", name="Close").click()
    expect(page.locator("#document")).to_be_hidden()


def test_a_file_is_dropped(open_page):
    page = open_page()
    transfer = page.evaluate_handle(
        "() => { const data = new DataTransfer(); data.items.add(new File("
        "['Room 7 is on the third floor.'], 'room.txt')); return data; }"
    )
    page.dispatch_event("#source", "dragover", {"dataTransfer": transfer})
    expect(page.locator("#drop")).to_be_visible()
    page.dispatch_event("#source", "drop", {"dataTransfer": transfer})
    expect(page.locator("#drop")).to_be_hidden()
    expect(page.locator("#document-download")).to_contain_text("room.")


def test_a_busy_server_delays_a_file(open_page):
    page = open_page()
    answer_first(page, "serving_default", **BUSY)
    page.set_input_files("#file", files=[text_file("a.txt", b"Room 7.")])
    expect(page.locator("#trouble")).to_contain_text("busy")
    expect(page.locator("#document-download")).to_be_visible()
    expect(page.locator("#trouble")).to_be_hidden()


def test_a_file_is_cancelled(open_page):
    page = open_page()
    held = []
    page.route("**/v1/models/**", lambda route: held.append(route))
    page.set_input_files(
        "#file", files=[text_file("a.txt", many_sentences(99).encode())]
    )
    expect(page.locator("#document-text")).to_contain_text("0 of 100")
    with page.expect_event("requestfailed"):
        page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#document")).to_be_hidden()
    page.wait_for_timeout(200)
    assert len(held) == 1


@pytest.mark.parametrize("text", ["a b\n\nc d\n" * 40, "word " * 99, "x" * 99])
def test_a_long_text_is_cut_between_words(open_page, text):
    page = open_page()
    script = "text => import('/documents.js').then(m => m.blocks(text, 20))"
    blocks = page.evaluate(script, text)
    assert "".join(blocks) == text
    assert max(len(block) for block in blocks) <= 20
    if " " in text:
        assert all(block[-1].isspace() for block in blocks)


@pytest.mark.parametrize("by_piece", [False, True])
def test_pieces_are_joined_to_words(open_page, by_piece):
    page = open_page()
    pieces = ["▁Vi", "en", "na", "▁", "1", ".", "5", "▁<", "<0xC3>", "<0xA9>"]
    pieces += [".", ")", "</s>"]
    words = ["Vienna", "1.5", "<é", ".", ")", "end"]
    script = (
        "([pieces, byPiece]) => import('/pieces.js')"
        ".then(m => m.groupPieces(pieces, byPiece))"
    )
    groups = page.evaluate(script, [pieces, by_piece])
    places = [place for group in groups for place in group["indices"]]
    assert places == list(range(len(pieces)))
    if by_piece:
        assert len(groups) == len(pieces)
    else:
        assert [group["text"] for group in groups] == words


def text_file(name, content):
    return {"name": name, "mimeType": "text/plain", "buffer": content}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\n \n", "has no words"),
        (b"\x89PNG\r\n\x1a\n\x00", "not a text file"),
        ("Gr\u00fc\u00df".encode("latin-1"), "not a text file"),
        (b"a" * 5_000_001, "too large"),
    ],
)
def test_a_file_that_cannot_be_translated(open_page, content, message):
    page = open_page()
    page.set_input_files("#file", files=[text_file("a.txt", content)])
    expect(page.locator("#document-text")).to_contain_text(message)
    page.get_by_role("button", name="Close").click()
    expect(page.locator("#document")).to_be_hidden()


def test_a_file_in_utf_16_is_read(open_page):
    page = open_page()
    content = "Room 7 is on the third floor.".encode("utf-16")
    page.set_input_files("#file", files=[text_file("a.txt", content)])
    expect(page.locator("#document-download")).to_be_visible()


# ---- Trouble ----------------------------------------------------------------


BUSY = {
    "status": 429,
    "headers": {"Retry-After": "1"},
    "json": {"error": "full"},
}


@pytest.mark.parametrize(
    ("times", "answer", "message"),
    [(1, BUSY, "The server is busy"), (2, {}, "cannot be reached")],
)
def test_a_server_in_trouble_is_asked_again(
    open_page, api, times, answer, message
):
    page = open_page()
    answer_first(page, "n_best", times, **answer)
    page.fill("#source", SENTENCE)
    expect(page.locator("#trouble")).to_contain_text(message)
    best = api("serving_default", text=[SENTENCE])["translation"][0]
    expect(page.locator("#target")).to_have_text(best)
    expect(page.locator("#trouble")).to_be_hidden()


def test_a_token_is_asked_for_and_kept(open_page):
    def demand_token(route):
        if route.request.headers.get("authorization") == "Bearer secret":
            return route.continue_()
        return route.fulfill(status=401, json={"error": "Token missing"})

    page = open_page()
    page.route("**/api/**", demand_token)
    page.route("**/v1/**", demand_token)
    page.reload()
    expect(page.locator("#trouble")).to_contain_text("access token")
    page.fill("#token", "wrong")
    page.keyboard.press("Enter")
    expect(page.locator("#trouble")).to_contain_text("access token")
    page.fill("#token", "secret")
    page.get_by_role("button", name="Use it").click()
    expect(page.locator("#trouble")).to_be_hidden()
    page.fill("#source", SENTENCE)
    expect(page.locator("#lines .word").first).to_be_visible()
    page.reload()
    expect(page.locator("#title")).to_contain_text(" to ")
    expect(page.locator("#trouble")).to_be_hidden()


@pytest.mark.parametrize("status", [400, 404, 500, 504])
def test_other_errors_are_shown(open_page, status):
    page = open_page()
    answer_first(page, "n_best", status=status, json={"error": "the cause <b>"})
    page.fill("#source", SENTENCE)
    expect(page.locator("#trouble")).to_contain_text("the cause <b>")
    expect(page.locator("#copy")).to_be_disabled()
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("#lines .word").first).to_be_visible()
    expect(page.locator("#trouble")).to_be_hidden()


def test_an_error_page_of_a_proxy_is_shown(open_page):
    page = open_page()
    answer_first(page, "n_best", status=502, body="<html>Bad gateway</html>")
    page.fill("#source", SENTENCE)
    expect(page.locator("#trouble")).to_contain_text("status 502")


# ---- Looks and access -------------------------------------------------------


def background(page):
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_themes(open_page):
    light = background(open_page(color_scheme="light"))
    page = open_page(color_scheme="dark")
    dark = background(page)
    assert light != dark
    button = page.get_by_role("button", name="Dark theme")
    expect(button).to_have_attribute("aria-pressed", "true")
    button.click()
    assert background(page) == light
    page.reload()
    assert background(page) == light
    expect(button).to_have_attribute("aria-pressed", "false")


def test_motion_is_reduced(open_page):
    page = open_page(SENTENCE, reduced_motion="reduce")
    script = "node => getComputedStyle(node).transitionDuration"
    assert page.locator("#lines .word").first.evaluate(script) == "0s"


@pytest.mark.parametrize("text", [SENTENCE, TWO, "a" * 300, f"{SENTENCE} " * 9])
def test_a_phone_does_not_scroll_sideways(open_page, text):
    page = open_page(text, size=PHONE)
    for summary in page.locator("summary").all():
        summary.click()
    assert_no_horizontal_scroll(page)
    page.check("#by-piece")
    assert_no_horizontal_scroll(page)
    show_heat_map(page)
    assert_no_horizontal_scroll(page)


def focused(page):
    """Returns the id, or the text, of the element that has the focus."""
    return page.evaluate(
        "() => { const node = document.activeElement;"
        " return node.id || node.value || node.textContent.trim(); }"
    )


def test_everything_is_reached_by_keyboard(open_page, api):
    page = open_page()
    assert focused(page) == "source"
    page.keyboard.type(TWO)
    expect(page.locator("#lines .word").first).to_be_visible()
    expect(page.locator("#target .sentence")).to_have_count(2)
    first, second = api.split(TWO)["sentences"]
    stops = []
    for _ in range(40):
        page.keyboard.press("Tab")
        stops.append(focused(page))
        outline = page.evaluate(
            "getComputedStyle(document.activeElement).outlineStyle"
        )
        assert outline != "none" or stops[-1] in ("source", "lines")
        if stops[-1] == "About this model":
            break
    best = api("serving_default", text=[second])["translation"][0]
    wishes = ["beginning", "terms", "avoided"]
    wishes = wishes if api.model["has_control"] else []
    order = ["choose-file", best, *wishes, "copy", "attention-kind"]
    order += ["lines", "layer", "head", "by-piece"]
    places = [stops.index(stop) for stop in order]
    assert places == sorted(places)
    assert stops[-2:] == ["Search settings", "About this model"]

    # One stop for the words of each side, and the arrow keys between them.
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    words = page.locator("[aria-label='Words of the translation'] .word")
    expect(words.first).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(words.nth(1)).to_be_focused()
    expect(page.locator("#caption")).to_contain_text("looked at")
    page.keyboard.press("End")
    expect(words.last).to_be_focused()
    page.keyboard.press("Escape")
    assert focused(page) == "source"
    expect(page.locator("#lines path.current")).to_have_count(0)

    # Another sentence, and its second translation.
    page.locator("#target .sentence").last.focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#alternatives-note")).to_contain_text(first)
    expect(page.locator("#target .sentence").first).to_be_focused()
    for _ in ["copy", "alternatives", *wishes]:
        page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    other = api.n_best(first)["translation"][0][1]
    expect(page.locator("#target .sentence").first).to_have_text(other)
    expect(page.locator("#alternatives-list button").nth(1)).to_be_focused()


def nothing(page):
    pass


def open_details(page):
    for summary in page.locator("summary").all():
        summary.click()


def take_alternative(page):
    page.locator("#alternatives-list button").nth(1).click()
    expect(page.locator("#attention-note")).to_be_visible()
    page.locator("#lines .word").first.hover()


def ask_for_token(page):
    answer_first(page, "n_best", status=401, json={"error": "no"})
    page.fill("#source", "Another text.")
    expect(page.locator("#token")).to_be_visible()


def translate_file(page):
    page.set_input_files("#file", files=[text_file("a.txt", b"Room 7.")])
    expect(page.locator("#document-download")).to_be_visible()


def show_encoder(page):
    page.select_option("#attention-kind", "encoder")
    page.locator("#lines .word").first.hover()


STATES = {
    "empty": ("", nothing),
    "text": (TWO, nothing),
    "heat": (SENTENCE, show_heat_map),
    "encoder": (SENTENCE, show_encoder),
    "details": (SENTENCE, open_details),
    "taken": (SENTENCE, take_alternative),
    "token": (SENTENCE, ask_for_token),
    "file": (SENTENCE, translate_file),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_axe_finds_nothing(open_page, state, theme, size):
    text, prepare = STATES[state]
    page = open_page(
        text, size=size, color_scheme=theme, reduced_motion="reduce"
    )
    prepare(page)
    page.wait_for_timeout(300)
    found = Axe().run(page, options={"resultTypes": ["violations"]})
    assert not found.response["violations"], found.generate_report()


@pytest.mark.parametrize(
    ("name", "theme", "size"),
    [
        ("desktop-light", "light", DESKTOP),
        ("desktop-dark", "dark", DESKTOP),
        ("heat-map", "light", DESKTOP),
        ("phone", "light", PHONE),
    ],
)
def test_screenshots(open_page, tmp_path, name, theme, size):
    page = open_page(SENTENCE, size=size, color_scheme=theme)
    if name == "heat-map":
        show_heat_map(page)
    else:
        words = page.locator("[aria-label='Words of the translation'] .word")
        words.nth(7).hover()
        expect(words.nth(7)).to_contain_class("current")
    page.wait_for_timeout(400)
    assert_no_horizontal_scroll(page)
    path = pathlib.Path(SCREENSHOTS or tmp_path, f"{name}.png")
    page.screenshot(path=path, full_page=True)
