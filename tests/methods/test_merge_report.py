"""The report of a merge: what it says first, and what a model card shows of it."""

from typing import Any

import pytest

from deltahub.methods.kinds.merge import COMPARE, OPTIONS
from deltahub.methods.merging.emr import Sums
from deltahub.methods.merging.report import MergeReport, TaskReport, to_markdown, worst_tensors

COMMIT = "0123456789abcdef" * 2 + "01234567"


def report(main_bytes: int, **options: Any) -> MergeReport:
    task = TaskReport(
        branch="mnli", model=f"ann/mnli@{COMMIT}", is_exact=False,
        scale=0.75, relative_error=0.5, cosine=0.8,
        mask_share=0.6, changed_share=0.9, kept_tensors=2, fine_tune_bytes=3_000_000,
        branch_bytes=500_000, worst=[],
    )  # fmt: skip
    return MergeReport(
        method="emr", rescaler="l1", base=f"ann/base@{COMMIT}", fine_tunes_bytes=3_000_000,
        main_bytes=main_bytes, branches_bytes=500_000, merged_tensors=1, merged_elements=8,
        warnings=["mnli: a warning"], tasks=[task], options=options,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("main_bytes", "verdict"),
    [
        (1_000_000, "1.5 MB less than the fine-tunes as lossless deltas."),
        (4_000_000, "1.5 MB more than the fine-tunes as lossless deltas, which are exact."),
    ],
)
def test_the_card_says_which_is_smaller(main_bytes: int, verdict: str) -> None:
    card = to_markdown(report(main_bytes), "ann/merged")
    assert verdict in card
    assert 'from_pretrained("ann/merged", revision="mnli")' in card
    assert "| 0.500 | 0.800 | 0.7500 | 60.0% | 3.0 MB | 500.0 kB |" in card
    assert "- mnli: a warning" in card


def test_the_card_links_models_and_commits_of_twelve_digits() -> None:
    card = to_markdown(report(1), "ann/merged")
    short = f"[`0123456789ab`](/ann/{{}}/tree/{COMMIT})"
    assert f"1 fine-tunes of [`ann/base`](/ann/base) at {short.format('base')}, merged" in card
    assert f"| mnli | [`ann/mnli`](/ann/mnli) at {short.format('mnli')} |" in card
    assert f"@{COMMIT}" not in card


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("rescaler", "l1", "The scale of each task was chosen by `l1`."),
        ("lossless", True, "Each branch is its fine-tune, bit for bit."),
        ("scale", 1, "The merged differences were multiplied by 1."),
        ("density", 0.2, "The largest 20.0% of each task's differences were kept."),
        ("rank", 8, "The differences of each matrix have rank 8."),
        ("exclude", [r"(^|\.)head\.", "`"], r"match `` (^|\.)head\. ``, `` ` `` were not merged."),
    ],
)
def test_the_card_says_in_words_what_was_asked_for(name: str, value: Any, sentence: str) -> None:
    assert sentence in to_markdown(report(1, **{name: value}), "ann/merged")


@pytest.mark.parametrize("value", [None, False, []])
def test_the_card_leaves_out_options_that_were_not_used(value: Any) -> None:
    card = to_markdown(report(1, lossless=value), "ann/merged")
    assert "## Options" not in card


def test_every_option_of_a_method_that_makes_a_model_has_words() -> None:
    names = {"exclude"}.union(*(each for method, each in OPTIONS.items() if method != COMPARE))
    made = {name: {"exclude": ["x"], "lossless": True}.get(name, 1) for name in names}
    card = to_markdown(report(1, **made), "ann/merged")
    options, _, warnings = card.partition("## Options")[2].partition("## Warnings")
    assert options.count("\n- ") == len(names)
    assert warnings.count("\n- ") == 1


def test_the_worst_tensors_come_first() -> None:
    sums = {
        "exact": Sums(2, 2.0, 2.0, 2.0, 2.0, 2.0, 2, 2),
        "masked away": Sums(2, 2.0, 0.0, 0.0, 0.0, 2.0, 0, 2),
    }
    found = worst_tensors(sums, dict.fromkeys(sums, 1.0))
    assert [(each.name, each.relative_error) for each in found] == [
        ("masked away", 1.0),
        ("exact", 0.0),
    ]
