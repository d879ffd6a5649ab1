"""Comparisons that are asked for, and what they find."""

from typing import Any

from deltahub.methods.kinds.compare import CompareArguments
from deltahub.registry import Caller, Registry
from deltahub.registry.results.comparisons import read
from deltahub.registry.results.comparisons.read import TensorQuery
from support.jobs.here import ask_job, run_job


def asked(reg: Registry, who: Caller, first: str, second: str, **options: Any) -> str:
    """Ask for a comparison, and give it its turn; the job's id."""
    arguments = CompareArguments(first=first, second=second, **options)
    return ask_job(reg, who, arguments)


def compared(reg: Registry, who: Caller, first: str, second: str) -> str:
    """Compare two models; the comparison's id."""
    return str(run_job(reg, asked(reg, who, first, second))["comparison_id"])


def tensors_of(reg: Registry, who: Caller, comparison_id: str) -> dict[str, dict[str, Any]]:
    found, _ = read.list_tensors(reg, who, comparison_id, TensorQuery(limit=10_000))
    return {each["name"]: each for each in found}
