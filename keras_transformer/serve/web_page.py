"""The page at `/`, and the two requests of its own that it makes.

Its translations come from the REST API that all clients use.
"""

import asyncio
import importlib.resources
import json
import pathlib

from keras_transformer.serve.errors import ServingError, invalid, quoted
from keras_transformer.serve.model_registry import ModelRegistry
from keras_transformer.serve.rest import JSON, Answer
from keras_transformer.serve.rest_json import parse_object

FOLDER = importlib.resources.files("keras_transformer.serve") / "page"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
# The file at each path of the page.
FILES = {f"/{file.name}": file for file in FOLDER.iterdir()}
FILES["/"] = FILES.pop("/index.html")
# Nothing is loaded from elsewhere, and no other page may frame it.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)


async def answer(
    method: str, path: str, body: bytes, models: ModelRegistry
) -> Answer:
    """Returns a file of the page, or the answer to one of its requests.

    Raises:
        ServingError: for an unknown path, another method or a malformed body.
    """
    if path in FILES and method in ("GET", "HEAD"):
        file = FILES[path]
        headers = [
            ("Content-Type", TYPES[pathlib.PurePath(file.name).suffix]),
            ("Content-Security-Policy", POLICY),
            ("Referrer-Policy", "no-referrer"),
            ("Cache-Control", "no-cache"),
        ]
        return Answer(200, headers, file.read_bytes())
    if (method, path) == ("GET", "/api/models"):
        return _json({"models": _models(models)})
    if (method, path) == ("POST", "/api/split"):
        return _json(await asyncio.to_thread(_split, body))
    known = {*FILES, "/api/models", "/api/split"}
    if path in known:
        raise ServingError(
            "UNIMPLEMENTED",
            f"No method {quoted(method)} for {path}.",
            http_status=405,
        )
    raise ServingError("NOT_FOUND", f"Nothing is served at {quoted(path)}.")


def _models(models):
    """Describes the versions that answer requests."""
    found = []
    for name in models.names:
        for number in models.available(name):
            served = models.find(name, number)
            found.append(
                {
                    "name": name,
                    "version": str(served.number),
                    "signature": served.metadata["signature"],
                    "source": served.metadata.get("source", ""),
                    "target": served.metadata.get("target", ""),
                    "tags": served.metadata["tags"],
                    "max_length": served.metadata["max_length"],
                    "max_pieces": served.metadata["max_pieces"],
                    "has_control": "control" in served.signatures,
                    "has_explain": "explain" in served.signatures,
                    **{
                        key: served.search[key]
                        for key in (
                            "beam_size",
                            "alpha",
                            "max_beam_size",
                            "min_length",
                            "no_repeat_ngram_size",
                            "repetition_penalty",
                        )
                    },
                }
            )
    return found


def _split(body):
    """Splits a document into sentences and what is between them."""
    from keras_transformer.inference.sentences import split_sentences

    request = parse_object(body)
    text, language = request.get("text"), request.get("language")
    if not (isinstance(text, str) and isinstance(language, str)):
        raise invalid(
            'Expected a body such as {"text": "Yes. No.", "language": "en"}.'
        )
    split = split_sentences(text, language)
    return {"sentences": split.sentences, "separators": split.separators}


def _json(value):
    return Answer(200, JSON, json.dumps(value).encode())
