"""What an export says of itself: sentences, card, bounds and estimates."""

from typing import Any

import pytest
import yaml

from deltahub.codecs.dtypes import DType
from deltahub.codecs.exports.coding import coding, lossless
from deltahub.methods.exporting.report import (
    ExportedWeight,
    ExportEstimate,
    ExportReport,
    Perplexity,
    error_bound,
    estimated_bytes,
)


def weight(name: str, bits: int = 3, error: float = 0.03, **options: Any) -> ExportedWeight:
    given: dict[str, Any] = {
        "dtype": "BF16", "shape": (64, 128), "levels": (bits,), "block": 0,
        "plain_bytes": 16384, "coded_bytes": 7000, "bound": 0.06, "largest": 0.05,
        "element_bits": 6.8,
    }  # fmt: skip
    return ExportedWeight(name=name, bits=bits, error=error, **(given | options))


def report(*weights: ExportedWeight) -> ExportReport:
    return ExportReport(
        model=f"a/b@{'0' * 40}", bits="3", budget=None, block=0, weights=weights, plain=("norm",),
        plain_bytes=sum(each.plain_bytes for each in weights) + 128,
        export_bytes=sum(each.coded_bytes for each in weights) + 128,
    )  # fmt: skip


def test_a_lossless_export_says_that_nothing_is_lost() -> None:
    told = report(weight("a", 7, 0.0, coded_bytes=11000))
    assert told.is_lossless
    size, loss = told.sentences()
    assert "1 compressed weight takes 67.1% of the plain size" in size
    assert loss == "nothing is lost: every weight decodes to the bits that it had"


def test_a_rounded_export_says_how_many_weights_lose_how_much() -> None:
    told = report(weight("a"), weight("b", 1, 0.11), weight("c", 7, 0.0), weight("d", 3, 0.02))
    _, rounded, others = told.sentences()
    assert rounded == (
        "3 weights are rounded: 1 to 1, 2 to 3 mantissa bits; the largest relative error is"
        " 11.00%, of b"
    )
    assert others == "1 other weight loses nothing"


def test_weights_that_could_not_be_rounded_are_named() -> None:
    special = [weight(f"w{i}", 7, 0.0, is_special=True) for i in range(5)]
    line = report(weight("a"), *special).sentences()[2]
    assert line.startswith("5 weights have infinite or NaN elements")
    assert line.endswith("w0, w1, w2 and 2 more")
    assert len(report(weight("a"), *special).sentences()) == 3


def test_a_perplexity_is_told_before_and_after() -> None:
    found = Perplexity(n_tokens=1234, before=9.89, after=9.93)
    told = report(weight("a")).model_copy(update={"perplexity": found})
    assert told.sentences()[-1] == (
        "the perplexity of the given text was 9.89, and is 9.93 (+0.40%), over 1,234 tokens"
    )


def test_the_card_carries_the_license_and_the_text_of_the_models_own() -> None:
    fields = {"license": "other", "license_name": 'of "ours"', "language": ["de", "en"], "x": 1}
    card = report(weight("a")).card("a/c", "a/b", fields, "# B\n\nOf bees.\n", 9999)
    _, front, text = card.split("---\n", 2)
    assert yaml.safe_load(front) == {
        "base_model": "a/b", "base_model_relation": "quantized", "library_name": "deltahub",
        "license": "other", "license_name": 'of "ours"', "language": ["de", "en"],
        "tags": ["neuzip"],
    }  # fmt: skip
    assert 'load("a/c")' in text
    assert text.endswith("## The model's own card\n\n# B\n\nOf bees.\n")
    assert "own card" not in report(weight("a")).card("a/c", "a/b", {}, "", 9999)


def test_the_card_of_a_lossless_export_does_not_say_that_it_is_quantized() -> None:
    card = report(weight("a", 7, 0.0)).card("a/c", "a/b", {}, "", 9999)
    assert yaml.safe_load(card.split("---\n", 2)[1]) == {
        "base_model": "a/b", "library_name": "deltahub", "tags": ["neuzip"],
    }  # fmt: skip


def test_the_card_can_be_read_whatever_characters_the_models_own_has() -> None:
    fields = {"license_name": "a\x7f\x85\x9f\u2028\U0001f600ß", "datasets": ["x" * 20_000]}
    card = report(weight("a")).card("a/c", "a/b", fields, "", 9999)
    told = yaml.safe_load(card.split("---\n", 2)[1])
    assert told["license_name"] == fields["license_name"]
    assert "datasets" not in told  # it is too long


def test_a_long_text_of_the_models_own_card_is_cut() -> None:
    card = report(weight("a")).card("a/c", "a/b", {}, "ß" * 10_000, 9999)
    assert 9990 < len(card.encode()) <= 9999
    assert card.endswith("ß\n\nThe rest is in the model's own card.\n")


@pytest.mark.parametrize("bits", [0, 1, 3, 5])
def test_the_bound_is_half_a_unit_of_the_last_kept_bit(bits: int) -> None:
    how = coding(DType.BF16, bits, 0)
    # Reached halfway between 1 and the next number of so many bits.
    middle = 1 + 2.0 ** -(bits + 1)
    assert error_bound(how) == pytest.approx((middle - 1) / middle)
    assert error_bound(coding(DType.BF16, bits, 512)) > error_bound(how)


def test_lossless_weights_have_no_error_and_take_what_trained_ones_do() -> None:
    assert error_bound(lossless(DType.F32)) == 0
    assert estimated_bytes(lossless(DType.BF16), 1000) == pytest.approx(1000 * 10.65 / 8, abs=1)
    assert estimated_bytes(coding(DType.BF16, 3, 8), 8000) > estimated_bytes(
        coding(DType.BF16, 3, 0), 8000
    )
    # Never more than the plain bytes.
    assert estimated_bytes(lossless(DType.F8_E5M2), 1000) <= 1000


def test_an_estimate_says_what_the_export_takes_of_the_model() -> None:
    told = ExportEstimate(
        n_weights=12,
        plain_bytes=10_000_000,
        export_bytes=6_500_000,
        memory_bytes=400_000_000,
        seconds=12.4,
    )
    (line,) = told.sentences()
    assert "about 12 s and at most 400.0 MB of memory" in line
    assert "compresses 12 weights" in line
    assert "6.5 MB of the model's 10.0 MB (65.0%)" in line


def test_an_estimate_for_a_budget_says_what_may_be_asked_for() -> None:
    told = ExportEstimate(
        n_weights=1, plain_bytes=10, export_bytes=6, memory_bytes=9, budget_range=(3.65, 10.7),
        has_text=True,
    )  # fmt: skip
    size, budget = told.sentences()
    assert "about 1 s, and the perplexity of the text more, and" in size
    assert "take 3.65 bits an element without any mantissa bit, and 10.70 with all" in budget
