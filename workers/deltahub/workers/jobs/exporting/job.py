"""The job `export_neuzip`: its steps, in their order.

1. Choose how each weight is coded, and estimate the cost by a sample.
2. With a budget: measure what each weight loses at each number of bits, and choose. With
   entquant: measure what a sample of each weight takes at each penalty, and choose one for all.
3. Code the weights, a pack of parts at a time.
4. Make the file with these parts and the plain tensors, which has to be hashed.
5. With a text: measure the perplexity of the model and of the export. Publish.

result {"name", "commit", "export"}, or {"estimate"} of a dry run.
"""

from typing import Any, Final

from deltahub.methods.exporting.budget import Trial, choose_bits
from deltahub.methods.exporting.report import ExportEstimate
from deltahub.methods.kinds.export_neuzip import ExportNeuzipArguments
from deltahub.workers.context import JobContext

_STEPS: Final = "deltahub.workers.jobs.exporting.steps"
_ESTIMATING: Final = "deltahub.workers.jobs.exporting.estimating"
_RATES: Final = "deltahub.workers.jobs.exporting.rates"
_SCORE: Final = "deltahub.workers.jobs.exporting.scoring:score"
# Shares of the job: until the model is looked at, the bits are chosen, all weights are coded, and
# the file is hashed. A sample is measured faster than all weights.
_READ, _MEASURED, _CHOSEN, _CODED, _HASHED = 0.02, 0.1, 0.4, 0.9, 0.95


def export_neuzip(context: JobContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Run the job. payload: as registry/results/asked.py writes it."""
    arguments = ExportNeuzipArguments.model_validate(payload["arguments"])
    checked = context.compute("look at the model", f"{_ESTIMATING}:check", {}, (0, _READ))
    if arguments.dry_run:
        return {"estimate": checked["estimate"]}
    estimate = ExportEstimate.model_validate(checked["estimate"])
    context.step("tell the cost", lambda: _tell(context, estimate.sentences()))
    bits, rounding, begun = {}, {}, _READ
    if arguments.budget is not None:
        parts = context.compute_parts(f"{_STEPS}:measure", {}, (_READ, _CHOSEN))
        bits = context.step("choose the bits", lambda: _chosen(parts, arguments.budget or 0))
        begun = _CHOSEN
    elif arguments.method == "entquant":
        parts = context.compute_parts(f"{_RATES}:measure_rates", {}, (_READ, _MEASURED))
        told, share = {"parts": parts}, (_MEASURED, _MEASURED)
        rounding = context.compute("choose the penalty", f"{_RATES}:choose", told, share)
        begun = _MEASURED
    asked_of = {"bits": bits, "rounding": rounding}
    coded = context.compute_parts(f"{_STEPS}:code", asked_of, (begun, _CODED))
    given: dict[str, Any] = {
        "made": [tensor for part in coded for tensor in part["made"]],
        "weights": [weight for part in coded for weight in part["weights"]],
    }
    given["row"] = context.compute("file", f"{_STEPS}:make_file", given, (_CODED, _HASHED))
    if arguments.text is not None:
        name = "measure the perplexity"
        given["perplexity"] = context.compute(name, _SCORE, given, (_HASHED, 0.99))
    result: dict[str, Any] = context.compute("publish", f"{_STEPS}:publish", given, (0.99, 1))
    context.tell_memory()
    return result


def _chosen(parts: list[dict[str, Any]], budget: float) -> dict[str, int]:
    measured = [each for part in parts for each in part["measured"]]
    trials = {each["name"]: [Trial(*trial) for trial in each["trials"]] for each in measured}
    return choose_bits(trials, {each["name"]: each["count"] for each in measured}, budget)


def _tell(context: JobContext, sentences: list[str]) -> None:
    for sentence in sentences:
        context.log(sentence)
