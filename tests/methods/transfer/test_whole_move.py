"""A whole move in a small world: from private data to a kit, and from the kit to a new base.

Nothing after the kit touches the private examples: they lie in a handle that fails when it is read.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from deltahub.methods.transfer.kit import Seed, TransferKit
from deltahub.methods.transfer.measures.agreement import agreement, disagreements, flips
from deltahub.methods.transfer.measures.distances import median_gamma, sketch_of, squared_mmd
from deltahub.methods.transfer.measures.gate import Rung, choose, decide
from deltahub.methods.transfer.models.adapters import STUDENT, using
from deltahub.methods.transfer.models.discriminator import margins, train_discriminator
from deltahub.methods.transfer.models.embeddings import embed
from deltahub.methods.transfer.models.excess import choose as choose_tokens
from deltahub.methods.transfer.models.excess import encode_chosen
from deltahub.methods.transfer.models.inventing import invent
from deltahub.methods.transfer.models.students import (
    Labelled,
    encode_all,
    fit,
    hold_out,
    label,
    train_student,
)
from deltahub.methods.transfer.rejection import Rejection, sample
from deltahub.methods.transfer.report import Distances, Provenance, RungReport, TransferReport
from support.transfer.tiny_world import (
    CONTRACT,
    NAME,
    Task,
    new_base,
    old_base,
    recipe,
    tokenizer,
    with_teacher,
)

TASK = Task(5)


class Private(Sequence[Labelled]):
    """Examples that can be read until they are poisoned."""

    def __init__(self, examples: Sequence[Labelled]) -> None:
        self._examples: Sequence[Labelled] | None = examples

    def poison(self) -> None:
        self._examples = None

    def __len__(self) -> int:
        return len(self._read())

    def __getitem__(self, place: Any) -> Any:
        return self._read()[place]

    def __iter__(self) -> Iterator[Labelled]:
        return iter(self._read())

    def _read(self) -> Sequence[Labelled]:
        if self._examples is None:
            raise AssertionError("private data were read after the kit was made")
        return self._examples


@dataclass
class Made:
    """What leaves the owner's machine. source: the old base with teacher and discriminator."""

    kit: TransferKit
    source: Any


def completions(labelled: Sequence[Labelled]) -> list[str]:
    return [each.completion for each in labelled]


def right(model: Any, adapter: str | None, tests: Sequence[Labelled]) -> float:
    """Accuracy on examples of the task."""
    texts = [each.text for each in tests]
    found = label(model, tokenizer(), texts, CONTRACT, adapter=adapter)
    return agreement(completions(tests), completions(found), CONTRACT).value


def make(private: Private, tests: Sequence[Labelled]) -> Made:
    """The owner's part."""
    source = with_teacher(old_base(), private)
    seeds = tuple(Seed(input=each.text) for each in private[:5])
    texts = [each.text for each in private]
    invented: list[str] = []
    with using(source, None):
        for call in range(4):
            invented += invent(source, tokenizer(), [each.input for each in seeds], call)
    source, report = train_discriminator(
        source, tokenizer(), texts, invented, NAME, recipe(epochs=12)
    )
    gamma = median_gamma(embed(source, tokenizer(), invented))
    kit = TransferKit(
        name=NAME,
        base="org/v1@" + "1" * 40,
        contract=CONTRACT,
        seeds=seeds,
        n_examples=len(private),
        source_accuracy=right(source, "teacher", tests),
        n_tests=len(tests),
        discriminator=report,
        sketch=sketch_of(embed(source, tokenizer(), texts), gamma, noise=0.002),
        adapter_sha256="0" * 64,
        discriminator_sha256=sha256(b"discriminator").hexdigest(),
        tokenizer_sha256="0" * 64,
    )
    return Made(kit, source)


def test_a_moved_adapter_does_on_the_new_base_what_it_did_on_the_old_one() -> None:
    examples = TASK.examples(240, 0)
    private, tests = Private(examples[:140]), examples[140:]
    made = make(private, tests)
    private.poison()
    kit, source, seed = made.kit, made.source, 3

    # The new base makes inputs up, and the old one keeps those that its discriminator takes.
    generator, pool = new_base(), []

    def draw(call: int) -> list[str]:
        found = invent(generator, tokenizer(), kit.inputs, call)
        pool.extend(found)
        return found

    state = sample(
        Rejection.start(kit.inputs, wanted=100, times=10),
        draw,
        lambda texts: margins(source, tokenizer(), texts, kit.name),
    )
    state.require_any(5)
    assert not set(state.accepted) & set(kit.inputs)
    assert len(set(state.accepted)) == len(state.accepted)
    assert kit.sketch is not None
    gamma = kit.sketch.gamma
    kept, all_of_them = (embed(source, tokenizer(), each) for each in (state.accepted, pool))
    distances = Distances(
        gamma=gamma,
        unfiltered_to_private=kit.sketch.squared_distance(all_of_them),
        filtered_to_private=kit.sketch.squared_distance(kept),
        filtered_to_unfiltered=squared_mmd(kept, all_of_them, gamma),
    )

    labelled = label(source, tokenizer(), state.accepted, kit.contract)
    learnt, held_out = hold_out(labelled, seed)
    student, _ = train_student(
        new_base(), encode_all(tokenizer(), learnt, kit.contract), recipe(seed=seed)
    )
    chosen = choose_tokens(source, tokenizer(), learnt, kit.contract)
    tokens = encode_chosen(tokenizer(), chosen, kit.contract, is_same_tokenizer=True)
    by_tokens, _ = train_student(new_base(), tokens, recipe(seed=seed))

    prompts, teacher = [each.text for each in held_out], completions(held_out)
    answers = {
        name: completions(label(model, tokenizer(), prompts, kit.contract, adapter=adapter))
        for name, model, adapter in (
            ("base", student, None),
            ("trans_lora", student, STUDENT),
            ("titok", by_tokens, STUDENT),
        )
    }
    agreed = {name: agreement(teacher, each, kit.contract) for name, each in answers.items()}
    best = choose([(Rung(name), each) for name, each in agreed.items() if name != "base"])
    report = TransferReport(
        provenance=Provenance(
            adapter="org/a@" + "2" * 40,
            source_base=kit.base,
            target_base="org/v2@" + "3" * 40,
            discriminator_sha256=kit.discriminator_sha256,
            seed=seed,
        ),
        base_agreed=agreed["base"],
        source_accuracy=kit.source_accuracy,
        rungs=tuple(
            RungReport(
                rung=Rung(name),
                agreed=agreed[name],
                fit=fit(model, encode_all(tokenizer(), held_out, kit.contract)),
                flips=flips(teacher, answers["base"], answers[name], kit.contract),
            )
            for name, model in (("trans_lora", student), ("titok", by_tokens))
        ),
        chosen=best,
        decision=decide(agreed[best.value], agreed["base"], kit.source_accuracy, max_loss=0.5),
        sampling=state.report(),
        discriminator=kit.discriminator,
        distances=distances,
        disagreements=tuple(disagreements(prompts, teacher, answers[best.value], kit.contract)),
    )

    moved, base = right(student, STUDENT, tests), right(student, None, tests)

    assert kit.source_accuracy is not None
    assert kit.source_accuracy > 0.9
    assert moved > base + 0.3
    assert agreed["trans_lora"].lower > agreed["base"].upper
    assert agreed["titok"].value > agreed["base"].value
    assert report.decision.is_published
    assert report.recovery is not None
    assert report.recovery > 0.5
