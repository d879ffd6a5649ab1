"""The kit and the report of a move, as records and in sentences."""

import subprocess
import sys
from hashlib import sha256
from typing import Any

import numpy as np
import pytest

from deltahub.methods.errors import CannotTransfer
from deltahub.methods.transfer.contract import Contract
from deltahub.methods.transfer.kit import Seed, TransferKit, tokenizer_digest
from deltahub.methods.transfer.measures.agreement import Disagreement, Flips
from deltahub.methods.transfer.measures.discrimination import measure
from deltahub.methods.transfer.measures.distances import sketch_of
from deltahub.methods.transfer.measures.gate import Rung, decide
from deltahub.methods.transfer.measures.intervals import Share
from deltahub.methods.transfer.rejection import Rejection
from deltahub.methods.transfer.report import (
    Cost,
    Distances,
    Provenance,
    RungReport,
    TransferReport,
)
from deltahub.methods.transfer.rungs.copying import Likeness

DISCRIMINATOR = b"weights"
AUC = measure([1.0, 2, 3], [-1.0, -2, -3], epoch=2, n_trained=24, has_single_labels=True)


def kit(**fields: Any) -> TransferKit:
    made: dict[str, Any] = {
        "name": "orders", "base": "org/base@" + "a" * 40, "contract": Contract(),
        "seeds": (Seed(input="one", completion="1"), Seed(input="two")), "n_examples": 250,
        "source_accuracy": 0.9, "n_tests": 100, "discriminator": AUC,
        "sketch": sketch_of(np.eye(4), 1.0, noise=0.01), "adapter_sha256": "0" * 64,
        "discriminator_sha256": sha256(DISCRIMINATOR).hexdigest(), "tokenizer_sha256": "1" * 64,
    }  # fmt: skip
    return TransferKit.model_validate(made | fields)


def test_a_kit_comes_back_from_its_json() -> None:
    made = kit()
    assert TransferKit.model_validate_json(made.model_dump_json()) == made
    assert made.inputs == ["one", "two"]


def test_a_kit_says_what_it_tells_of_the_private_data() -> None:
    said = "\n".join(kit().sentences())
    assert "250 private examples" in said
    assert "90.0% on 100 private tests" in said
    assert "2 private inputs as they are" in said
    assert "can be guessed" in said
    assert "Gaussian noise of 0.01 on each of 512 numbers" in said
    assert "too small for differential privacy" in said
    private = sketch_of(np.ones((1_000, 4)), 1.0, noise=0.05)
    assert "(0.27, 1e-5)-differentially private" in kit(sketch=private).sentences()[-1]
    assert "accuracy is not known" in kit(source_accuracy=None, n_tests=0).sentences()[0]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"source_accuracy": None}, "belong together"),
        ({"n_tests": 0}, "belong together"),
        ({"seeds": (Seed(input="one"), Seed(input="one"))}, "two seeds are the same"),
        ({"seeds": ()}, "at least 1 item"),
        ({"name": "a\nb"}, "pattern"),
        ({"adapter_sha256": "x"}, "pattern"),
        ({"private_examples": ["secret"]}, "Extra inputs"),
    ],
)
def test_a_kit_that_cannot_be_is_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        kit(**fields)


def test_a_kit_is_refused_for_another_base_or_discriminator() -> None:
    kit().require_base("org/base@" + "a" * 40, DISCRIMINATOR)
    with pytest.raises(CannotTransfer, match="make a kit on that base"):
        kit().require_base("org/base@" + "b" * 40)
    with pytest.raises(CannotTransfer, match="push the kit again"):
        kit().require_base("org/base@" + "a" * 40, b"other")


def test_tokenizers_are_the_same_by_their_files() -> None:
    one = {"tokenizer.json": b"{}", "config.json": b"1"}
    assert tokenizer_digest(one) == tokenizer_digest({**one, "config.json": b"2"})
    assert tokenizer_digest(one) != tokenizer_digest({"tokenizer.json": b"[]"})
    assert tokenizer_digest({"vocab.json": b"1", "merges.txt": b""})
    with pytest.raises(CannotTransfer, match="no tokenizer"):
        tokenizer_digest({"config.json": b"1"})


def test_records_and_arithmetic_load_no_torch() -> None:
    pure = "kit, report, prompts, rejection, recipe, rungs.copying, rungs.titok, measures.gate"
    code = "".join(f"import deltahub.methods.transfer.{each}\n" for each in pure.split(", "))
    code += "import sys\nsys.exit(bool({'torch', 'transformers', 'peft'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True)


def report(**fields: Any) -> TransferReport:
    agreed, base = Share(n=100, hits=99), Share(n=100, hits=20)
    made: dict[str, Any] = {
        "provenance": Provenance(
            adapter="org/a@1", source_base="org/v1@2", target_base="org/v2@3", seed=0
        ),
        "base_agreed": base,
        "source_accuracy": 0.9,
        "rungs": (
            RungReport(rung=Rung.COPY, why_not="q_proj has another shape"),
            RungReport(
                rung=Rung.TRANS_LORA,
                agreed=agreed,
                flips=Flips(n=100, negative=1, positive=80),
                labelled_flips=Flips(n=50, negative=2, positive=1),
                cost=Cost(seconds=61),
            ),
        ),
        "chosen": Rung.TRANS_LORA,
        "decision": decide(agreed, base, 0.9),
        "sampling": Rejection.start(["a"], wanted=10).report(),
        "discriminator": AUC,
        "distances": Distances(
            gamma=1, unfiltered_to_private=0.5, filtered_to_private=0.1, filtered_to_unfiltered=0.3
        ),
        "likeness": Likeness(cosines={"model.layers.0.q": 0.01}),
        "disagreements": (Disagreement(prompt="x", teacher="1", student="2"),),
    }
    return TransferReport.model_validate(made | fields)


def test_a_report_says_what_was_decided_and_why() -> None:
    made = report()
    assert TransferReport.model_validate_json(made.model_dump_json()) == made
    said = made.sentences()
    assert said[0] == "moved org/a@1 to org/v2@3 by trans_lora"
    text = "\n".join(said)
    for part in (
        "its accuracy is at least 84.6%, at 95 %",
        "recovers 98.8%",
        "copy: not possible, because q_proj has another shape",
        "repairs 80 of the new base and breaks 1",
        "4.0% of answers were right before and are wrong now, 2.0% the other way round; 61 s",
        "a copy will not do",
        "AUC is 1.000",
        "nearer to the private ones",
        "1 disagreement is listed",
    ):
        assert part in text
    assert made.recovery == pytest.approx(0.79 / 0.8)


def test_a_report_says_what_few_inputs_and_much_noise_leave_open() -> None:
    few = report(base_agreed=Share(n=8, hits=1)).sentences()
    assert any(each.startswith("only 8 inputs measured it") and "(n)" in each for each in few)
    assert not any(each.startswith("only") for each in report().sentences())
    told = {"gamma": 1, "unfiltered_to_private": 0.12, "filtered_to_private": 0.1}
    noisy = Distances(**told, filtered_to_unfiltered=0.3, noise_error=0.011)
    assert "the noise of the kit's sketch hides" in report(distances=noisy).sentences()[-2]
    clear = noisy.model_copy(update={"noise_error": 0.009})
    assert "are nearer to the private ones" in report(distances=clear).sentences()[-2]


def test_every_move_of_a_chain_starts_from_the_same_teacher_and_discriminator() -> None:
    first = report().provenance.model_copy(update={"discriminator_sha256": "f" * 64})
    third = first.to("org/v3@4").to("org/v4@5")
    assert third.target_base == "org/v4@5"
    assert third.hops == ("org/v2@3", "org/v3@4")
    same = {"adapter", "source_base", "discriminator_sha256"}
    assert third.model_dump(include=same) == first.model_dump(include=same)


def test_a_report_of_a_refusal_promises_nothing() -> None:
    agreed, base = Share(n=100, hits=50), Share(n=100, hits=20)
    refused = report(decision=decide(agreed, base, 0.9))
    text = "\n".join(refused.sentences())
    assert text.startswith("did not move org/a@1 to org/v2@3: it stays on org/v1@2\n")
    assert "at least" not in text
    with pytest.raises(ValueError, match="at most 50"):
        report(disagreements=(Disagreement(prompt="x", teacher="1", student="2"),) * 51)
