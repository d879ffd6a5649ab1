"""The report of a merge: what it says first, and what a model card shows of it."""

import pytest

from deltahub.methods.merging.emr import Sums
from deltahub.methods.merging.report import MergeReport, TaskReport, to_markdown, worst_tensors


def report(main_bytes: int) -> MergeReport:
    task = TaskReport(
        branch="mnli", model="ann/mnli@abc", is_exact=False,
        scale=0.75, relative_error=0.5, cosine=0.8,
        mask_share=0.6, changed_share=0.9, kept_tensors=2, fine_tune_bytes=3_000_000,
        branch_bytes=500_000, worst=[],
    )  # fmt: skip
    return MergeReport(
        method="emr", rescaler="l1", base="ann/base@abc", fine_tunes_bytes=3_000_000,
        main_bytes=main_bytes, branches_bytes=500_000, merged_tensors=1, merged_elements=8,
        warnings=["mnli: a warning"], tasks=[task],
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
    assert "| mnli | ann/mnli@abc | 0.500 | 0.800 | 0.7500 | 60.0% | 3.0 MB | 500.0 kB |" in card
    assert "- mnli: a warning" in card


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
