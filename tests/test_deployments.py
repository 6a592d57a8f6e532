"""Checks the files of `examples/serving`, without a cluster or a daemon."""

import json
import pathlib
import re
import shlex

import pytest
import yaml

from keras_transformer.cli.arguments import parse
from keras_transformer.cli.options import settings_of
from keras_transformer.serve.settings import ServeSettings

FOLDER = pathlib.Path(__file__).parents[1] / "examples" / "serving"
FILES = sorted(FOLDER.glob("*.yaml"))
ENTRYPOINT = json.loads(
    re.search(r"^ENTRYPOINT (.*)", (FOLDER / "Dockerfile").read_text(), re.M)[1]
)
each_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)


def dictionaries(value):
    """Yields all dictionaries in a value, in any depth."""
    if isinstance(value, dict):
        yield value
    parts = value.values() if isinstance(value, dict) else value
    if not isinstance(parts, str) and hasattr(parts, "__iter__"):
        for part in parts:
            yield from dictionaries(part)


def commands(file):
    """Yields the commands that containers of our image run."""
    for document in yaml.safe_load_all(file.read_text()):
        for container in dictionaries(document):
            is_built = "dockerfile" in (container.get("build") or {})
            if is_built or "keras-transformer" in container.get("image", ""):
                if container.get("command") == ["sh", "-c"]:
                    for line in container["args"][0].split("&&"):
                        yield shlex.split(line)
                elif is_built:
                    yield [*ENTRYPOINT, *container["command"]]
                elif "args" in container:
                    yield [*ENTRYPOINT, *container["args"]]


@each_file
def test_commands_have_options_that_exist(file):
    parsed = [
        parse(command[command.index("serve") :])
        for command in commands(file)
        if "keras-transformer" in command
    ]
    assert parsed
    for given in parsed:
        assert given["path"] == "/models/demo"
        assert given["host"] == "0.0.0.0"
        # Whoever reaches the server needs a token, or is on this machine.
        settings = ServeSettings(**settings_of(ServeSettings, given))
        assert settings.insecure == (file.name == "compose.yaml")


def test_ports_without_a_token_are_open_to_this_machine_alone():
    services = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])


@each_file
def test_secrets_that_are_used_are_declared(file):
    documents = list(yaml.safe_load_all(file.read_text()))
    keys = {
        document["metadata"]["name"]: document["stringData"]
        for document in documents
        if document.get("kind") == "Secret"
    }
    for document in documents:
        for used in dictionaries(document):
            if "secretName" in used:
                for item in used.get("items", []):
                    assert item["key"] in keys[used["secretName"]]
            if document.get("kind") == "PodMonitor" and "credentials" in used:
                reference = used["credentials"]
                assert reference["key"] in keys[reference["name"]]
    for values in keys.values():
        tokens = values["tokens"].split()
        assert values.get("prometheus", tokens[0]) in tokens


@each_file
def test_each_file_says_that_it_was_not_run(file):
    text = " ".join(file.read_text().replace("#", " ").split())
    assert re.search("not run where it was written", text, re.IGNORECASE)


@each_file
def test_volumes_and_ports_that_are_used_are_declared(file):
    for document in yaml.safe_load_all(file.read_text()):
        for pod in dictionaries(document):
            for container in pod.get("containers", []):
                mounts = {m["name"] for m in container.get("volumeMounts", [])}
                assert mounts <= {v["name"] for v in pod.get("volumes", [])}
                ports = container.get("ports", [])
                declared = {port.get("name") for port in ports}
                declared |= {port["containerPort"] for port in ports}
                for probe in dictionaries(container):
                    if "path" in probe and "port" in probe:
                        assert probe["port"] in declared
