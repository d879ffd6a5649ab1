"""Kits made on the owner's machine: what they hold, what leaves the machine, what is refused."""

import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from deltahub.client import Hub
from deltahub.client.errors import Conflict, EntryNotFound, InvalidArgument, InvalidRequest
from deltahub.client.local.kits import read_kit
from deltahub.client.transfer import Example, make_kit
from deltahub.methods.errors import CannotTransfer
from deltahub.methods.transfer.discriminator_file import discriminator_files
from deltahub.methods.transfer.kit import Seed
from deltahub.methods.transfer.models.adapters import DISCRIMINATOR, load_adapter, load_base
from deltahub.methods.transfer.models.discriminator import margins
from deltahub.methods.transfer.prompts import list_prompt
from deltahub.methods.transfer.recipe import Recipe
from support.service.client_process import deltahub
from support.service.hub import RunningHub
from support.transfer.private_task import PrivateTask, options, private_task, write_jsonl
from support.transfer.tiny_world import NAME

pytestmark = pytest.mark.long


class Handle(Sequence[Example]):
    """Private examples that fail when they are read after the kit is made."""

    def __init__(self, examples: Sequence[Example]) -> None:
        self.examples: Sequence[Example] | None = examples

    def __len__(self) -> int:
        assert self.examples is not None, "private data were read after the kit was made"
        return len(self.examples)

    def __getitem__(self, place: Any) -> Any:
        assert self.examples is not None, "private data were read after the kit was made"
        return self.examples[place]


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> PrivateTask:
    return private_task(tmp_path_factory.mktemp("task"))


@pytest.fixture(scope="module")
def folder(task: PrivateTask, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kit whose private data were poisoned after it was made."""
    at = tmp_path_factory.mktemp("made") / "kit"
    handle = Handle(task.examples)
    make_kit(
        task.adapter, task.base, handle, name=NAME, output=at, redact=lambda seeds: seeds,
        tests=task.tests, options=options(),
    )  # fmt: skip
    handle.examples = None
    return at


def test_a_kit_holds_what_a_move_needs(task: PrivateTask, folder: Path, tmp_path: Path) -> None:
    made = read_kit(folder)
    kit = made.kit
    assert (kit.name, kit.n_examples, kit.n_tests) == (NAME, len(task.examples), len(task.tests))
    assert kit.source_accuracy is not None
    assert kit.source_accuracy > 0.9
    assert kit.discriminator.auc > 0.9
    assert len(kit.seeds) == 5
    assert {(each.input, each.completion) for each in kit.seeds} <= {
        (each.input, each.completion) for each in task.examples
    }
    assert kit.sketch is not None
    weights = (task.adapter / "adapter_model.safetensors").read_bytes()
    assert kit.adapter_sha256 == sha256(weights).hexdigest()
    # What the discriminator learnt is in its file, as PEFT loads it.
    for name, data in discriminator_files(made.discriminator).items():
        (tmp_path / name).write_bytes(data)
    model, tokenizer = load_base(task.base)
    model = load_adapter(model, tmp_path, DISCRIMINATOR)
    real = margins(model, tokenizer, [each.input for each in task.tests], NAME)
    other = margins(model, tokenizer, [f"{n}7{n}1" for n in range(10)], NAME)
    assert sum(each > 0 for each in real) / len(real) > 0.8
    assert sum(real) / len(real) > sum(other) / len(other)


def test_the_folder_holds_no_private_example_but_the_seeds(task: PrivateTask, folder: Path) -> None:
    kit = read_kit(folder).kit
    assert {each.name for each in folder.iterdir()} == {"kit.json", "discriminator.safetensors"}
    assert folder.stat().st_mode & 0o077 == 0
    text = (folder / "kit.json").read_text()
    shown = {each.input for each in kit.seeds}
    hidden = [each.input for each in [*task.examples, *task.tests] if each.input not in shown]
    assert not [each for each in hidden if f'"{each}"' in text]


def test_the_same_seed_makes_the_same_kit(task: PrivateTask, tmp_path: Path) -> None:
    made = []
    for number in range(2):
        done = make_kit(
            task.adapter, task.base, task.examples[:60], name=NAME, redact=lambda seeds: seeds,
            output=tmp_path / f"kit{number}", options=replace(options(epochs=6), noise=0.0),
        )  # fmt: skip
        made.append(done)
    assert made[0].kit == made[1].kit
    # The noise of the sketch is nobody's to repeat.
    third = make_kit(
        task.adapter, task.base, task.examples[:60], name=NAME, redact=lambda seeds: seeds,
        output=tmp_path / "kit2", options=options(epochs=6),
    ).kit  # fmt: skip
    assert third.sketch is not None
    assert third.sketch != made[0].kit.sketch
    assert third.seeds == made[0].kit.seeds
    assert third.discriminator_sha256 == made[0].kit.discriminator_sha256


def test_seeds_are_stored_as_the_owner_edits_them(task: PrivateTask, tmp_path: Path) -> None:
    picked: list[Sequence[Seed]] = []

    def redact(seeds: Sequence[Seed]) -> Sequence[Seed]:
        picked.append(seeds)
        return [Seed(input="0000"), *seeds[1:]]

    done = make_kit(
        task.adapter, task.base, task.examples[:60], name=NAME, redact=redact,
        output=tmp_path / "kit", options=options(epochs=6),
    )  # fmt: skip
    assert done.kit.inputs[0] == "0000"
    assert picked[0][0].input not in (tmp_path / "kit" / "kit.json").read_text().split('"')


def test_a_discriminator_that_guesses_is_refused_unless_the_owner_insists(
    task: PrivateTask, tmp_path: Path
) -> None:
    weak = replace(options(), recipe=Recipe(learning_rate=1e-9, epochs=1))
    given: dict[str, Any] = {
        "name": NAME, "redact": lambda seeds: seeds, "output": tmp_path / "kit",
    }  # fmt: skip
    with pytest.raises(CannotTransfer, match="the discriminator guesses"):
        make_kit(task.adapter, task.base, task.examples, options=weak, **given)
    assert not (tmp_path / "kit").exists()
    insisting = replace(weak, is_weak_allowed=True)
    done = make_kit(task.adapter, task.base, task.examples, options=insisting, **given)
    assert done.kit.discriminator.lower <= 0.5


class Recorder(BaseHTTPRequestHandler):
    """A hub that notes every byte that it is sent."""

    def _note(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.seen.append(self.requestline.encode() + bytes(self.headers) + body)  # type: ignore[attr-defined]
        commit = {"name": "ann/v1", "commit": "1" * 40, "entries": []}
        text = b"" if self.command == "PUT" else json.dumps(commit).encode()
        self.send_response(204 if self.command == "PUT" else 200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_PUT = do_POST = _note

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def recorder() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Recorder) as server:
        server.seen = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()


def test_no_private_data_but_the_seeds_leave_the_machine(
    task: PrivateTask, tmp_path: Path, recorder: ThreadingHTTPServer
) -> None:
    # Long words, so that none is found in other bytes by chance.
    private = [Example(f"{each.input}", f"secret-{each.input}") for each in task.examples[:60]]
    url = f"http://127.0.0.1:{recorder.server_port}"
    seen: list[bytes] = recorder.seen  # type: ignore[attr-defined]
    with Hub(url, "dh_x") as hub:
        done = make_kit(
            task.adapter, task.base, private, name=NAME, redact=lambda seeds: seeds, hub=hub,
            output=tmp_path / "kit", options=options(epochs=6, base_name="ann/v1"),
        )  # fmt: skip
        # The hub was asked for the base's commit, and was told nothing.
        assert not [each for each in seen if b"secret" in each or not each.startswith(b"GET ")]
        with pytest.raises(Exception):  # noqa: B017, PT011 - the recorder knows no facts
            hub.push_kit(tmp_path / "kit", "ann/a")
    (sent,) = [each for each in seen if each.startswith(b"PUT ")]
    told = {each for each in private if f"secret-{each.input}".encode() in sent}
    assert {each.input for each in told} == set(done.kit.inputs)


def test_a_hub_takes_the_kit_of_its_adapter(
    task: PrivateTask, tmp_path: Path, hub_server: RunningHub
) -> None:
    token = hub_server.user("kim")
    data = write_jsonl(tmp_path / "data.jsonl", task.examples)
    seeds = write_jsonl(tmp_path / "seeds.jsonl", task.examples[:5])
    with Hub(hub_server.url, token) as kim:
        kim.push(task.base, "kim/v1")
        kim.push(task.adapter, "kim/adapter", base="kim/v1")
        commit = kim.revision("kim/v1").commit
        environment = {"DELTAHUB_URL": hub_server.url, "DELTAHUB_TOKEN": token}
        shared = ("--learning-rate", "0.004", "--epochs", "8", "--rank", "8", "--prompt",
                  "{input}=", "--max-new-tokens", "3")  # fmt: skip
        made = ("adapter", "kit", "kim/adapter", "--base", "kim/v1", "--data", str(data), "--name",
                NAME, "--output", str(tmp_path / "kit"), *shared)  # fmt: skip
        refused = deltahub(*made, "--yes", environment=environment)
        assert refused.status == 2
        assert "--seeds" in refused.err
        kim.push(task.base, "kim/v2")
        wrong = ["kim/v2" if each == "kim/v1" else each for each in made]
        refused = deltahub(*wrong, "--yes", "--seeds", str(seeds), environment=environment)
        assert refused.status == 2
        assert "the base of kim/adapter is kim/v1, not kim/v2" in refused.err
        targets = [part for each in ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj",
                   "up_proj", "down_proj") for part in ("--targets", each)]  # fmt: skip
        done = deltahub(
            *made, *targets, "--yes", "--seeds", str(seeds), "--push", environment=environment
        )
        assert done.status == 0, done.err
        assert "the hub shows nobody" in done.out
        # Our own stages, and neither bars nor warnings of the libraries.
        assert "training the discriminator done in" in done.err
        assert not [each for each in ("Loading weights", "Warning", "\r") if each in done.err]
        facts = kim.kit("kim/adapter")
        assert (facts.base, facts.n_examples, facts.is_current) == (f"kim/v1@{commit}", 140, True)
        with_again = deltahub(
            "adapter", "kit", "kim/adapter", "--from", str(tmp_path / "kit"),
            environment=environment,
        )  # fmt: skip
        assert with_again.status == 0, with_again.err
        shown = deltahub("adapter", "kit", "kim/adapter", "--json", environment=environment)
        assert json.loads(shown.out)["name"] == NAME
        # The base moves on; the adapter is of the old one. Then the adapter changes.
        (tmp_path / "kit" / "kit.json").write_text(
            (tmp_path / "kit" / "kit.json").read_text().replace(commit, "2" * 40)
        )
        with pytest.raises(InvalidRequest, match="the adapter's base is"):
            kim.push_kit(tmp_path / "kit", "kim/adapter")
        (tmp_path / "kit" / "kit.json").write_text(
            (tmp_path / "kit" / "kit.json").read_text()
            .replace("2" * 40, commit)
            .replace(read_kit(tmp_path / "kit").kit.adapter_sha256, "0" * 64)
        )  # fmt: skip
        with pytest.raises(Conflict, match="other weights"):
            kim.push_kit(tmp_path / "kit", "kim/adapter")
        gone = deltahub(
            "adapter", "kit", "kim/adapter", "--delete", "--yes", environment=environment
        )
        assert gone.status == 0, gone.err
        with pytest.raises(EntryNotFound):
            kim.kit("kim/adapter")


def test_a_kit_whose_parts_do_not_fit_is_not_pushed(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="is no kit"):
        read_kit(tmp_path)
    for name, data in {
        "kit.json": (folder / "kit.json").read_bytes(),
        "discriminator.safetensors": (folder / "discriminator.safetensors").read_bytes(),
    }.items():
        (tmp_path / name).write_bytes(data)
    data = bytearray((tmp_path / "discriminator.safetensors").read_bytes())
    data[-1] ^= 1
    (tmp_path / "discriminator.safetensors").write_bytes(data)
    with pytest.raises(InvalidArgument, match="SHA-256"):
        read_kit(tmp_path)
    (tmp_path / "kit.json").write_text("{}")
    with pytest.raises(InvalidArgument, match=r"kit\.json"):
        read_kit(tmp_path)


def test_seeds_are_shown_as_a_model_reads_them(folder: Path) -> None:
    kit = read_kit(folder).kit
    assert list_prompt(kit.inputs).startswith("Here are 10 examples:\n\n1. ")
