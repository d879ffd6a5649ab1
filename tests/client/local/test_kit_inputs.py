"""A kit is made by a tiny model that was really trained; what is no input of one is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from deltahub.client.cli.asking.kits import _ask
from deltahub.client.errors import InvalidArgument
from deltahub.client.local.kits import read_kit
from deltahub.client.transfer import Example, make_kit, read_examples
from deltahub.methods.transfer.kit import Seed
from support.service.client_process import deltahub
from support.transfer.private_task import PrivateTask, options, private_task
from support.transfer.tiny_world import NAME


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> PrivateTask:
    return private_task(tmp_path_factory.mktemp("task"), n=40, n_tests=10, steps=40, epochs=3)


def test_a_kit_is_made_from_a_base_an_adapter_and_examples(
    task: PrivateTask, tmp_path: Path
) -> None:
    weak = replace(options(epochs=3), is_weak_allowed=True)
    made = make_kit(
        task.adapter, task.base, task.examples, name=NAME, output=tmp_path / "kit",
        redact=lambda seeds: seeds, tests=task.tests, options=weak,
    )  # fmt: skip
    read = read_kit(tmp_path / "kit").kit
    assert read == made.kit
    assert (read.n_examples, read.n_tests, len(read.seeds)) == (40, 10, 5)
    assert made.n_made_up > 5
    assert made.peak_bytes > 1 << 20


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2: this is no JSON"),
        ("[]", "line 2: write"),
        ('{"text": "private"}', "line 2: write"),
        ('{"input": "", "completion": "private"}', "line 2: input must be"),
        ('{"input": 3, "completion": "private"}', "line 2: input must be"),
        ('{"input": "x", "completion": ["private"]}', "line 2: completion must be"),
    ],
)
def test_a_line_that_is_no_example_is_named_and_not_repeated(
    tmp_path: Path, line: str, words: str
) -> None:
    (tmp_path / "data.jsonl").write_text('{"input": "a"}\n' + line + "\n")
    with pytest.raises(InvalidArgument, match=words) as caught:
        read_examples(tmp_path / "data.jsonl")
    assert "private" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"redact": None}, "nobody has looked at the private examples"),
        ({"redact": lambda seeds: []}, "no seed is left"),
        ({"redact": lambda seeds: [seeds[0]] * 2}, "two seeds are the same"),
        ({"tests": [Example("7777")]}, "tests need a completion"),
        ({"dataset": [Example("1"), Example("1"), Example("2")]}, "2 different examples"),
        ({"dataset": "missing.jsonl"}, "cannot be read"),
        ({"adapter": "base"}, "it is no adapter"),
        ({"options": replace(options(), device="gpu")}, "cpu or cuda:N, not 'gpu'"),
        ({"options": replace(options(), device="cuda:99")}, "there is no device cuda:99 here"),
    ],
)
def test_what_is_missing_is_said_before_any_work(
    task: PrivateTask, tmp_path: Path, given: dict[str, Any], words: str
) -> None:
    usual: dict[str, Any] = {
        "adapter": task.adapter, "base": task.base, "dataset": task.examples, "name": NAME,
        "output": tmp_path / "kit", "redact": lambda seeds: seeds, "options": options(),
    }  # fmt: skip
    if given.get("adapter") == "base":
        given = {"adapter": task.base}
    with pytest.raises(InvalidArgument, match=words):
        make_kit(**usual | given)
    assert not (tmp_path / "kit").exists()


def test_a_folder_with_other_files_is_not_overwritten(task: PrivateTask, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InvalidArgument, match="other files"):
        make_kit(task.adapter, task.base, task.examples, name=NAME, output=tmp_path)


def test_a_kit_may_be_written_into_the_present_folder(
    task: PrivateTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weak = replace(options(epochs=1), is_weak_allowed=True)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    made = make_kit(
        task.adapter, task.base, task.examples[:20], name=NAME, output=".", options=weak,
        redact=lambda seeds: seeds,
    )  # fmt: skip
    assert read_kit(tmp_path / "here").kit == made.kit
    assert not [each for each in tmp_path.iterdir() if each.name.startswith(".")]


def test_seeds_are_shown_whole_however_long_they_are() -> None:
    seeds = [Seed(input="a" * 900 + " a name", completion="b" * 900 + " a place")]
    with CliRunner().isolation(input="a\n") as (_, errors, _):
        assert _ask(seeds) == seeds
        said = errors.getvalue().decode()
    assert "a name" in said
    assert "a place" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--data", "{data}"], "--base and --name"),
        (["--data", "{data}", "--base", "a/b", "--name", "n"], "--seeds"),
        (["--data", "{data}", "--base", "a/b", "--name", "n", "--seeds", "{data}"], "--yes"),
    ],
)
def test_a_command_that_lacks_something_says_what(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text(json.dumps({"input": "a"}) + "\n")
    given = [each.format(data=data) for each in arguments]
    done = deltahub("adapter", "kit", "ann/adapter", *given, environment={})
    assert done.status == 2
    assert words in done.err
