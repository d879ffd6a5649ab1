"""The report of a merge: what it kept of each fine-tune, and what it costs in bytes."""

import math
from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field

from deltahub.methods.merging.emr import Sums
from deltahub.methods.sizes import human_size


class TensorReport(BaseModel):
    """How one tensor of a task came out."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    relative_error: float = Field(description="|tau - merged tau| / |tau|, Euclidean norms.")


class TaskReport(BaseModel):
    """How one fine-tune came out. tau: the fine-tune less the base, over the merged tensors."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    branch: str
    model: str = Field(description="The fine-tune, as namespace/name@commit.")
    is_exact: bool = Field(description="The branch is the fine-tune, bit for bit.")
    scale: float | None = Field(
        default=None, description="emr: the task's scale; null if each tensor has its own."
    )
    relative_error: float = Field(
        default=0.0, description="|tau - merged tau| / |tau|, Euclidean norms."
    )
    cosine: float = Field(default=1.0, description="The cosine of tau and merged tau.")
    mask_share: float | None = Field(
        default=None, description="emr: share of elements whose mask is 1."
    )
    changed_share: float | None = Field(
        default=None, description="Share of elements that the fine-tune changed."
    )
    kept_tensors: int = Field(description="Tensors that are not merged.")
    fine_tune_bytes: int = Field(description="Stored bytes of the fine-tune, as lossless deltas.")
    branch_bytes: int = Field(description="Stored bytes of the branch alone.")
    worst: list[TensorReport] = Field(
        default=[], description="The tensors with the largest relative errors."
    )


class MergeReport(BaseModel):
    """The whole report. Bytes are encoded bytes in the hub's store, without the base's own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: int = 1
    method: str
    rescaler: str | None
    base: str = Field(description="The base, as namespace/name@commit.")
    fine_tunes_bytes: int = Field(description="All fine-tunes as the hub stores them now.")
    main_bytes: int = Field(description="The branch main, as deltas of the base.")
    branches_bytes: int = Field(description="The branches of all tasks.")
    merged_tensors: int
    merged_elements: int
    warnings: list[str]
    tasks: list[TaskReport]

    options: dict[str, float | int | bool | str | list[str] | None] = Field(
        default={}, description="What was asked for, besides the models: scale, rank and so on."
    )

    @property
    def merge_bytes(self) -> int:
        return self.main_bytes + self.branches_bytes

    def lines(self) -> list[str]:
        """The report in short: bytes, and how each task came out."""
        lines = [
            f"it takes {human_size(self.merge_bytes)}: {human_size(self.main_bytes)} for main and"
            f" {human_size(self.branches_bytes)} for the branches; the fine-tunes take"
            f" {human_size(self.fine_tunes_bytes)} as lossless deltas"
        ]
        for task in self.tasks:
            kept = "exact" if task.is_exact else f"error {task.relative_error:.3f}"
            lines.append(f"{task.branch}: {task.model}, {kept}, {human_size(task.branch_bytes)}")
        return lines + [f"warning: {each}" for each in self.warnings]


class TensorErrors(BaseModel):
    """How each merged tensor came out in each task. It is large, so that it is a file of its own,
    which is read by whoever looks for a tensor.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: int = 1
    tasks: list[str] = Field(description="Branches; of a static method: main, once for each task.")
    models: list[str] = Field(description="The fine-tunes, as namespace/name@commit.")
    relative_errors: dict[str, list[float]] = Field(
        description="|tau - merged tau| / |tau| of a tensor, for each task."
    )


N_WORST = 5


def relative_error(sums: Sums, scale: float) -> float:
    """|tau - scale * uni| / |tau|; 0 for a tensor without a change."""
    return math.sqrt(sums.squared_error(scale) / sums.tau_l2) if sums.tau_l2 else 0.0


def fidelity(tensors: Mapping[str, Sums], scales: Mapping[str, float]) -> tuple[float, float]:
    """(relative error, cosine) of a task over all merged tensors; (0, 1) without a change."""
    error = math.fsum(sums.squared_error(scales[name]) for name, sums in tensors.items())
    tau = math.fsum(sums.tau_l2 for sums in tensors.values())
    if tau == 0:
        return 0.0, 1.0
    product = math.fsum(scales[name] * sums.product for name, sums in tensors.items())
    merged = math.fsum(scales[name] ** 2 * sums.uni_l2 for name, sums in tensors.items())
    cosine = product / math.sqrt(tau * merged) if merged else 0.0
    return math.sqrt(error / tau), min(cosine, 1.0)


def worst_tensors(tensors: Mapping[str, Sums], scales: Mapping[str, float]) -> list[TensorReport]:
    """The N_WORST tensors with the largest relative errors, the worst first."""
    errors = {name: relative_error(sums, scales[name]) for name, sums in tensors.items()}
    names = sorted(errors, key=lambda name: (-errors[name], name))[:N_WORST]
    return [TensorReport(name=name, relative_error=errors[name]) for name in names]


def to_markdown(report: MergeReport, name: str) -> str:
    """The report as the text of a model card. name: the repository of the result."""
    saved = report.fine_tunes_bytes - report.merge_bytes
    verdict = (
        f"{human_size(saved)} less than the fine-tunes as lossless deltas"
        if saved > 0
        else f"{human_size(-saved)} more than the fine-tunes as lossless deltas, which are exact"
    )
    branches = [task.branch for task in report.tasks if task.branch != "main"]
    about = _ABOUT_MAIN.get(report.method, "`main` is one checkpoint of all tasks.")
    lines = [
        f"# {name}",
        "",
        f"{len(report.tasks)} fine-tunes of {_linked(report.base)}, merged by {report.method}."
        f" {about}" + (" Each task is a branch:" if branches else ""),
        "",
        "```python",
        f'AutoModel.from_pretrained("{name}", revision="{(branches or ["main"])[0]}")',
        "```",
        "",
        "## Bytes",
        f"The fine-tunes take {human_size(report.fine_tunes_bytes)} now, as lossless deltas.",
        f"The merge takes {human_size(report.merge_bytes)}: {human_size(report.main_bytes)} for"
        f" `main` and {human_size(report.branches_bytes)} for the branches. That is {verdict}.",
        "",
        "## Fidelity",
        "| branch | fine-tune | relative error | cosine | scale | mask | fine-tune now | branch |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for task in report.tasks:
        scale = "" if task.scale is None else f"{task.scale:.4f}"
        mask = "" if task.mask_share is None else f"{task.mask_share:.1%}"
        error = "exact" if task.is_exact else f"{task.relative_error:.3f}"
        lines.append(
            f"| {task.branch} | {_linked(task.model)} | {error} | {task.cosine:.3f} | {scale} |"
            f" {mask} | {human_size(task.fine_tune_bytes)} | {human_size(task.branch_bytes)} |"
        )
    asked = [f"- {sentence}" for sentence in _options_in_words(report.options)]
    lines += ["", "## Options", *asked] if asked else []
    warnings = [f"- {warning}" for warning in report.warnings]
    lines += ["", "## Warnings", *warnings] if warnings else []
    return "\n".join(lines) + "\n"


def _linked(model: str) -> str:
    """A revision as a card names it: links to the model and to its commit, of 12 digits."""
    name, _, commit = model.partition("@")
    return f"[`{name}`](/{name}) at [`{commit[:12]}`](/{name}/tree/{commit})"


def _options_in_words(options: Mapping[str, object]) -> list[str]:
    """What was asked for, a sentence for each option. One that has no words here is left out."""
    sentences = []
    for name, value in options.items():
        if value is None or value is False or value == [] or name not in _OPTIONS:
            continue
        if isinstance(value, list):
            # Two backticks, because a regular expression may have one.
            value = ", ".join(f"`` {each} ``" for each in value)
        sentences.append(_OPTIONS[name].format(value))
    return sentences


# Each option of a method -> its sentence in the card.
_OPTIONS = {
    "rescaler": "The scale of each task was chosen by `{}`.",
    "lossless": "Each branch is its fine-tune, bit for bit.",
    "scale": "The merged differences were multiplied by {:g}.",
    "density": "The largest {:.1%} of each task's differences were kept.",
    "rank": "The differences of each matrix have rank {}.",
    "exclude": "Tensors whose names match {} were not merged.",
}
# What main is in a merge whose tasks are branches.
_ABOUT_MAIN = {
    "emr": "`main` is the unified model.",
    "bitdelta": "`main` is the base.",
    "low-rank": "`main` is the base.",
    "lossless": "`main` is the base.",
}
