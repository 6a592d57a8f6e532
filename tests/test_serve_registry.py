"""Tests of how a server follows the folders of its versions."""

import asyncio
import logging
import pathlib
import re
import shutil

import numpy as np
import pytest

from keras_transformer.export.files import versions_in
from keras_transformer.serve import model_registry
from keras_transformer.serve.errors import (
    ProcessEndedError,
    ServingError,
    VersionEndedError,
)
from keras_transformer.serve.model_config import (
    ModelConfig,
    config_of_path,
    read_config_file,
)
from keras_transformer.serve.model_registry import ModelRegistry


class Served:
    """A version that notes when it ends."""

    is_running = True
    is_stopped = False

    def __init__(self, path):
        self.path = path
        self.number = int(path.name)

    async def stop(self):
        self.is_stopped = True


def make_versions(folder, *numbers):
    for number in numbers:
        (folder / f"{number}").mkdir(parents=True)
        (folder / f"{number}" / "saved_model.pb").touch()


def follow(config, use, damaged=()):
    """Runs the coroutine function `use` with models of a config.

    `config` is a list of `ModelConfig`, which `use` may replace, and `damaged`
    has the folders that cannot be loaded. Loading takes a moment.
    """

    async def start_version(name, path):
        await asyncio.sleep(0.01)
        if path in damaged:
            raise ValueError("damaged")
        return Served(path)

    asyncio.run(use(ModelRegistry(lambda: list(config), start_version, 0.01)))


@pytest.fixture(autouse=True)
def unload_at_once(monkeypatch):
    monkeypatch.setattr(model_registry, "SECONDS_BEFORE_UNLOADING", 0)


@pytest.fixture
def unreadable(monkeypatch):
    """Returns a set of folders whose files this process may not see.

    Tests of root may see all.
    """
    folders = set()
    is_file = pathlib.Path.is_file

    def check(path):
        if path.parent in folders:
            raise PermissionError(13, "Permission denied", f"{path}")
        return is_file(path)

    monkeypatch.setattr(pathlib.Path, "is_file", check)
    return folders


def test_an_older_version_is_served_if_newer_ones_are_damaged(tmp_path):
    make_versions(tmp_path, 1, 2, 3)
    damaged = {tmp_path / "2", tmp_path / "3"}

    async def states(models):
        await models.update()
        return {s.version: s.state for s in models.statuses("demo")}

    async def use(models):
        end = {2: "END", 3: "END"}
        for _ in range(2):
            assert await states(models) == {1: "AVAILABLE", **end}
        damaged.remove(tmp_path / "3")
        (tmp_path / "3" / "again").touch()
        assert await states(models) == {
            1: "UNLOADING",
            2: "END",
            3: "AVAILABLE",
        }
        await models.stop()

    async def use_2(models):
        assert await states(models) == {2: "END"}

    follow([ModelConfig("demo", tmp_path)], use, damaged)
    # A version that was asked for is not replaced by another.
    follow([ModelConfig("demo", tmp_path, versions=[2])], use_2, damaged)


def test_a_server_is_ready_while_each_of_its_versions_runs(tmp_path):
    make_versions(tmp_path, 3, 4)

    async def use(models):
        assert not models.are_ready
        await models.update()
        assert models.are_ready
        for number in (3, 4):
            models.find("demo", number).is_running = False
            assert not models.are_ready
            models.find("demo", number).is_running = True
        assert models.are_ready

    follow([ModelConfig("demo", tmp_path, versions=[3, 4])], use)


def test_a_version_that_cannot_be_read_is_passed_over(tmp_path, unreadable):
    make_versions(tmp_path, 1, 2)
    unreadable.add(tmp_path / "2")

    async def use(models):
        await models.update()
        assert models.available("demo") == [1]

    follow([ModelConfig("demo", tmp_path)], use, unreadable)


def test_a_version_whose_process_was_killed_is_tried_again(
    tmp_path, monkeypatch
):
    """Its files are as they were. What is damaged is not tried again."""
    monkeypatch.setattr(model_registry, "FIRST_PAUSE", 0.01)
    make_versions(tmp_path, 1)
    tried = []

    async def start_version(name, path):
        tried.append(path.name)
        if path.name == "3":
            raise ValueError("damaged")
        if path.name == "2" and tried.count("2") < 3:
            raise ProcessEndedError("killed")
        return Served(path)

    async def use():
        config = ModelConfig("demo", tmp_path, versions=[1, 2, 3])
        models = ModelRegistry(lambda: [config], start_version, 0.01)
        await models.update()
        make_versions(tmp_path, 2, 3)
        for _ in range(30):
            await models.update()
            await asyncio.sleep(0.005)
        assert models.available("demo") == [2, 1]

    asyncio.run(use())
    assert sorted(tried) == ["1", "2", "2", "2", "3"]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"base_path": "typo"}, "no version in '.*typo'. Found: none"),
        ({"versions": [1, 77]}, "no 77 in .* Found: 1, 2. Correct"),
        ({"labels": {"canary": 9}}, "no 9 in .* Found: 1, 2"),
    ],
    ids=str,
)
def test_a_version_that_is_not_there_is_named_once(
    tmp_path, caplog, config, expected
):
    make_versions(tmp_path, 1, 2)
    config = {"base_path": tmp_path, **config}
    config["base_path"] = tmp_path / config["base_path"]

    async def use(models):
        for _ in range(3):
            await models.update()

    follow([ModelConfig("demo", **config)], use)
    errors = [x for x in caplog.messages if x.startswith("Model 'demo' has")]
    assert len(errors) == 1
    assert re.search(expected, errors[0])


@pytest.mark.parametrize("name", ["01", "٣"])
def test_a_folder_that_is_no_version_is_not_served_as_one(tmp_path, name):
    make_versions(tmp_path, 1, 3)
    (tmp_path / "1").rename(tmp_path / name)
    with pytest.raises(ValueError, match=f"No export in .*{name}'"):
        config_of_path(tmp_path / name)


def test_a_model_is_called_as_its_folder(tmp_path, monkeypatch):
    make_versions(tmp_path / "demo", 1)
    monkeypatch.chdir(tmp_path / "demo" / "1")
    assert config_of_path("..").name == "demo"
    assert config_of_path(".") == config_of_path(tmp_path / "demo" / "1")


def test_a_folder_that_cannot_be_read_stops_no_other_model(
    tmp_path, monkeypatch, caplog
):
    make_versions(tmp_path / "b", 1)
    find = versions_in

    def look(folder):
        if folder.name == "a":
            raise PermissionError(13, "Permission denied", f"{folder}")
        return find(folder)

    monkeypatch.setattr(model_registry, "versions_in", look)

    async def use(models):
        for _ in range(2):
            await models.update()
        assert models.available("b") == [1]
        with pytest.raises(ValueError, match=r"'a'.*Permission denied"):
            models.require_ready()

    follow([ModelConfig(name, tmp_path / name) for name in "ab"], use)
    assert caplog.text.count("Permission denied") == 1


def test_a_wrong_config_file_is_logged_once(tmp_path, caplog):
    file = tmp_path / "models.config"
    file.write_text("model_config_list {")

    async def use():
        models = ModelRegistry(lambda: read_config_file(file), Served, 0.001)
        watching = asyncio.create_task(models.watch())
        await asyncio.sleep(0.1)
        file.write_text("")
        await asyncio.sleep(0.1)
        watching.cancel()

    asyncio.run(use())
    first, second = caplog.messages
    assert "is no config file" in first
    assert not first.endswith("..")
    assert "lists none" in second


def test_a_label_stays_until_its_next_version_answers(tmp_path):
    make_versions(tmp_path, 3, 4)

    def config(number):
        return ModelConfig(
            "demo", tmp_path, versions=[number], labels={"stable": number}
        )

    configs, damaged = [config(3)], {tmp_path / "4"}

    async def use(models):
        def number():
            return models.find("demo", label="stable").number

        await models.update()
        assert number() == 3
        configs[:] = [config(4)]
        await models.update()
        assert number() == 3
        damaged.clear()
        (tmp_path / "4" / "mended").touch()
        updating = asyncio.create_task(models.update())
        while not updating.done():
            assert number() in (3, 4)
            await asyncio.sleep(0)
        assert number() == 4
        await asyncio.sleep(0.01)
        assert models.available("demo") == [4]
        configs[:] = [ModelConfig("demo", tmp_path, versions=[4])]
        await models.update()
        with pytest.raises(ServingError, match='the label "stable"'):
            number()

    follow(configs, use, damaged)


def test_a_label_moves_when_its_own_version_answers(tmp_path):
    """Version 5 is the last one to be loaded, and no label names it."""
    make_versions(tmp_path, 3, 4, 5)

    def config(labels, *numbers):
        return ModelConfig("demo", tmp_path, versions=numbers, labels=labels)

    configs = [config({"stable": 3}, 3, 4)]

    async def use(models):
        await models.update()
        configs[:] = [config({"stable": 4, "new": 3}, 3, 4, 5)]
        updating = asyncio.create_task(models.update())
        await asyncio.sleep(0)
        assert models.available("demo") == [4, 3]
        assert models.find("demo", label="stable").number == 4
        assert models.find("demo", label="new").number == 3
        await updating
        assert models.available("demo") == [5, 4, 3]

    follow(configs, use)


def test_labels_keep_a_version_only_while_they_wait(tmp_path):
    """Versions 3 and 4 are served, and 5 that shall be stable is damaged."""
    make_versions(tmp_path, 3, 4, 5)

    def config(stable):
        labels = {"stable": stable, "canary": 4}
        return ModelConfig("demo", tmp_path, 2, labels=labels)

    configs, damaged = [config(3)], {tmp_path / "5"}

    async def use(models):
        (tmp_path / "5").rename(tmp_path / "hidden")
        await models.update()
        assert models.available("demo") == [4, 3]
        (tmp_path / "hidden").rename(tmp_path / "5")
        configs[:] = [config(5)]
        await models.update()
        assert models.available("demo") == [4, 3]
        # Whoever deletes a folder goes back to the older version.
        (tmp_path / "4").rename(tmp_path / "gone")
        await models.update()
        assert models.available("demo") == [3]

    follow(configs, use, damaged)


def test_a_version_of_another_folder_takes_the_place_of_one(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    make_versions(first, 1)
    make_versions(second, 1)
    configs, damaged = [ModelConfig("demo", first)], {second / "1"}

    async def use(models):
        await models.update()
        old = models.find("demo")
        configs[:] = [ModelConfig("demo", second)]
        for _ in range(2):
            await models.update()
            assert models.find("demo") is old
        damaged.clear()
        (second / "1" / "mended").touch()
        await models.update()
        new = models.find("demo")
        assert new.path == second / "1"
        await asyncio.sleep(0.01)
        assert (old.is_stopped, new.is_stopped) == (True, False)
        await models.update()
        assert models.find("demo") is new
        await models.stop()
        assert new.is_stopped

    follow(configs, use, damaged)


def test_numbers_of_versions_have_63_bits(tmp_path):
    make_versions(tmp_path, 0, 7, 2**63 - 1, 2**63)
    assert sorted(versions_in(tmp_path)) == [0, 7, 2**63 - 1]


def test_a_version_that_is_being_unloaded_ends_with_the_server(tmp_path):
    make_versions(tmp_path, 1)
    make_versions(tmp_path / "other", 1)
    configs = [ModelConfig("demo", tmp_path)]

    async def use(models):
        await models.update()
        old = models.find("demo")
        configs[:] = [ModelConfig("demo", tmp_path / "other")]
        await models.update()  # another version has its number now
        await models.stop()
        assert old.is_stopped

    follow(configs, use)


@pytest.fixture(autouse=True)
def log_warnings(caplog):
    caplog.set_level(logging.ERROR, "keras_transformer.serve")


def test_another_version_answers_for_one_that_cannot_any_more(tmp_path):
    """Or else the client is told to try again."""

    class Answering(Served):
        async def predict(self, signature_name, inputs, timeout=None):
            if not self.is_running:
                raise VersionEndedError
            return {"translation": np.array([self.number])}

    make_versions(tmp_path, 3, 4)
    config = [ModelConfig("demo", tmp_path, versions=[3, 4])]

    async def start_version(name, path):
        return Answering(path)

    async def run():
        models = ModelRegistry(lambda: config, start_version, 0.01)
        await models.update()
        wanted = "demo", None, None
        ended = models.find(*wanted)
        ended.is_running = False
        with pytest.raises(VersionEndedError) as caught:
            await models.predict(ended, wanted, "serving_default", {})
        assert (caught.value.http_status, caught.value.retry_after) == (503, 1)
        shutil.rmtree(tmp_path / "4")
        config[:] = [ModelConfig("demo", tmp_path, versions=[3])]
        await models.update()
        found = await models.predict(ended, wanted, "serving_default", {})
        assert found["translation"] == [3]  # it has taken over
        with pytest.raises(ServingError, match="Version 4"):
            await models.predict(ended, ("demo", 4, None), "x", {})
        await models.stop()

    asyncio.run(run())
