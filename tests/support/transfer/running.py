"""Runs the job `transfer_adapter` in this process, on bases and an adapter of the tiny world."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from deltahub.methods.adapters.lora import CONFIG_FILE, WEIGHTS_FILE
from deltahub.methods.kinds.transfer_adapter import TransferAdapterArguments
from deltahub.methods.transfer.discriminator_file import pack_discriminator
from deltahub.methods.transfer.kit import Seed, TransferKit
from deltahub.methods.transfer.measures.discrimination import DiscriminatorReport
from deltahub.methods.transfer.models.adapters import DISCRIMINATOR, save_adapter
from deltahub.methods.transfer.models.discriminator import train_discriminator
from deltahub.methods.transfer.models.inventing import invent
from deltahub.registry import Caller, Registry
from deltahub.registry.adapters.kits import NewKit, put_kit
from deltahub.registry.catalog.repositories import get_repository
from deltahub.registry.jobs import queue
from deltahub.registry.results.asked import ask
from deltahub.server.schemas.jobs import wish_of
from support.jobs.here import at_once, run_job
from support.registry.ingested import push_ingested
from support.registry.opened import sha256_of
from support.transfer.tiny_world import (
    CONTRACT,
    LETTERS,
    NAME,
    Task,
    longer_base,
    new_base,
    old_base,
    recipe,
    shuffled_tokenizer,
    tokenizer,
    with_shuffled_tokens,
    with_teacher,
)

TASK = Task(5)
# What a student of such small models needs; the rest it has from the old adapter.
SHOWN: dict[str, Any] = {"template": "{input}=", "max_new_tokens": 3}
TRAINING: dict[str, Any] = {"epochs": 30, "learning_rate": 4e-3}


@dataclass(frozen=True)
class Amount:
    """How much the world is trained: the bases by batches of so many documents, v2 for more steps
    than v1, the teacher and the discriminator for epochs.
    """

    batch: int = 24
    longer: int = 60
    teacher: int = 30
    discriminator: int = 12


# What the tests of jobs have, and what does for one that moves an adapter once.
WHOLE, SHORT = Amount(), Amount(12, 30, 20, 12)
BASES: dict[str, Callable[[Amount], Any]] = {
    "v1": lambda amount: old_base(batch=amount.batch),
    "twin": lambda amount: old_base(batch=amount.batch),
    "v2": lambda amount: longer_base(amount.longer, amount.batch),
    "wide": lambda amount: new_base(),
    "shuffled": lambda amount: with_shuffled_tokens(longer_base(amount.longer, amount.batch)),
}


def prompts(n: int = 8) -> str:
    """Inputs of the task, one a line."""
    return "\n".join(each.text for each in TASK.examples(n, 9))


def files_of(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in folder.iterdir()}


def write_base(name: str, folder: Path, amount: Amount = WHOLE) -> Path:
    """A base of the tiny world as save_pretrained writes it."""
    model = BASES[name](amount)
    model.generation_config.eos_token_id = 2
    model.save_pretrained(folder)
    (shuffled_tokenizer() if name == "shuffled" else tokenizer()).save_pretrained(folder)
    if name == "twin":
        (folder / "README.md").write_text("The same weights.")
    return folder


def write_teacher(folder: Path, base: str, amount: Amount = WHOLE, n: int = 140) -> Path:
    """An adapter of v1, trained on the private task. base: that its configuration names."""
    model = with_teacher(old_base(batch=amount.batch), TASK.examples(n, 0), epochs=amount.teacher)
    save_adapter(model, "teacher", folder, base, None)
    return folder


@cache
def base_files(name: str) -> dict[str, bytes]:
    with TemporaryDirectory() as folder:
        return files_of(write_base(name, Path(folder)))


def teacher_files(base: str, amount: Amount = WHOLE) -> dict[str, bytes]:
    return _teacher_files(base, amount)


@cache
def _teacher_files(base: str, amount: Amount) -> dict[str, bytes]:
    with TemporaryDirectory() as folder:
        return files_of(write_teacher(Path(folder) / "teacher", base, amount))


def push_world(reg: Registry, who: Caller, *bases: str) -> None:
    """Push WHO/v1, these other bases, and the adapter WHO/teacher of v1."""
    for name in ("v1", *bases):
        push_ingested(reg, who, f"{who.name}/{name}", base_files(name))
    base = f"{who.name}/v1"
    push_ingested(reg, who, f"{who.name}/teacher", teacher_files(base), base=base)


@cache
def _discriminator(of_words: bool, amount: Amount) -> tuple[bytes, DiscriminatorReport]:
    """A discriminator of the task on v1, and how good it is. of_words: of another task, whose
    inputs are letters.
    """
    base, seeds = old_base(batch=amount.batch), [each.text for each in TASK.examples(5, 0)]
    made_up: list[str] = []
    for call in range(4):
        made_up += invent(base, tokenizer(), seeds, call)
    texts = [each.text for each in TASK.examples(140, 0)]
    if of_words:
        words = ["".join(each) for each in product(LETTERS, repeat=4)]
        texts, made_up = words[:: len(words) // 140][:140], [*texts, *made_up]
    trained = recipe(epochs=amount.discriminator)
    model, report = train_discriminator(base, tokenizer(), texts, made_up, NAME, trained)
    with TemporaryDirectory() as folder:
        save_adapter(model, DISCRIMINATOR, Path(folder), "ann/v1", None)
        files = files_of(Path(folder))
    return pack_discriminator(files[CONFIG_FILE], files[WEIGHTS_FILE]), report


def discriminator_report() -> DiscriminatorReport:
    return _discriminator(False, WHOLE)[1]


def put_teacher_kit(
    reg: Registry, who: Caller, amount: Amount = WHOLE, *, of_words: bool = False, **options: Any
) -> None:
    """Store a kit of WHO/teacher. of_words: as above. options: other fields of kit.json; adapter:
    another repository of the same adapter.
    """
    name = options.pop("adapter", f"{who.name}/teacher")
    data, report = _discriminator(of_words, amount)
    examples = TASK.examples(140, 0)
    adapter = teacher_files(f"{who.name}/v1", amount)[WEIGHTS_FILE]
    base = f"{who.name}/v1@{get_repository(reg, who, f'{who.name}/v1').head}"
    fields: dict[str, Any] = {
        "name": NAME, "base": base, "contract": CONTRACT, "n_examples": 140,
        "seeds": [Seed(input=each.text) for each in examples[:5]], "discriminator": report,
        "source_accuracy": 0.97, "n_tests": 100, "adapter_sha256": sha256_of(adapter),
        "discriminator_sha256": sha256_of(data), "tokenizer_sha256": "0" * 64,
    }  # fmt: skip
    kit = TransferKit.model_validate(fields | options)
    new = NewKit(
        kit.model_dump(mode="json"), kit.base, kit.adapter_sha256, kit.discriminator_sha256
    )
    put_kit(reg, who, name, new, [data])


def asked(reg: Registry, who: Caller, **options: Any) -> str:
    """Ask to move WHO/teacher to WHO/v2 as WHO/moved, and give the job its turn; its id."""
    given: dict[str, Any] = {
        "adapter": f"{who.name}/teacher", "base": f"{who.name}/v2", "name": f"{who.name}/moved",
        "max_loss": 0.5, **TRAINING,
    }  # fmt: skip
    job = ask(reg, who, wish_of(TransferAdapterArguments.model_validate(given | options)))
    with reg.db.write_beside() as session:
        assert queue.mark_running(session, job.id)
    return job.id


def asked_with_prompts(reg: Registry, who: Caller, **options: Any) -> str:
    """The same of an adapter without a kit, with inputs of its task."""
    return asked(reg, who, **({"prompts": prompts(), "n": 100} | SHOWN | options))


def run_transfer(
    reg: Registry,
    job_id: str,
    run_step: Callable[[str, Callable[[], Any]], Any] = at_once,
) -> dict[str, Any]:
    return run_job(reg, job_id, run_step, threads=1)
