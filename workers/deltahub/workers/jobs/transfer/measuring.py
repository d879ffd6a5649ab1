"""Steps that measure each way on the held-out inputs, and decide which one is taken."""

import json
import time
from typing import Any

from deltahub.methods.transfer.measures.agreement import (
    Fit,
    agreement,
    disagreements,
    flips,
)
from deltahub.methods.transfer.measures.gate import Decision, Rung, choose, decide
from deltahub.methods.transfer.measures.intervals import Share
from deltahub.methods.transfer.rejection import SamplingReport
from deltahub.methods.transfer.report import (
    Cost,
    Distances,
    Provenance,
    RungReport,
    TransferReport,
)
from deltahub.methods.transfer.rungs.copying import Likeness
from deltahub.workers.compute.context import ComputeContext
from deltahub.workers.jobs.transfer.inputs import TransferInputs, load_inputs, title_of
from deltahub.workers.jobs.transfer.resident import adapter_files, resident


def answer(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: {"completions" of the held-out inputs by a moved adapter, "agreed" with the old one's,
    "fit" of these, "seconds"}, or {"why_not"}.

    arguments: rung: None for the target alone; made: as in making.py; held_out: (input, completion
    of the old adapter, is_whole) of each; device.
    """
    from deltahub.methods.errors import CannotTransfer
    from deltahub.methods.transfer.models import students

    began = time.monotonic()
    inputs = load_inputs(context, arguments)
    base = resident(context, inputs, "target", arguments)
    rung: str | None = arguments["rung"]
    stage = f"measure {rung or 'the new base alone'}"
    held_out = [students.Labelled(*each) for each in arguments["held_out"]]

    def progress(done: int, total: int) -> None:
        context.report(stage, done, total)

    try:
        if rung is not None:
            made = arguments["made"]
            base.add(context, rung, adapter_files(made["config"].encode(), made["row"]))
        answers = students.label(
            base.model,
            base.tokenizer,
            [each.text for each in held_out],
            inputs.contract,
            adapter=rung,
            on_progress=progress,
        )
        examples = students.encode_all(base.tokenizer, held_out, inputs.contract)
        fit = students.fit(base.model, examples, adapter=rung, on_progress=progress)
    except CannotTransfer as error:
        if rung is None:
            raise
        return {"why_not": str(error)}
    completions = [each.completion for each in answers]
    agreed = agreement([each.completion for each in held_out], completions, inputs.contract)
    return {
        "completions": completions,
        "agreed": agreed.model_dump(mode="json"),
        "fit": fit.model_dump(mode="json"),
        "seconds": time.monotonic() - began,
    }


def report(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: TransferReport.

    arguments: held_out; alone: completions of the target alone, None if nothing was measured;
    rungs: way -> {"why_not"} or completions, fit, seconds, peak_bytes, start; sampling, distances,
    likeness: None if there is none; notes: more sentences; device.
    """
    inputs = load_inputs(context, arguments)
    contract = inputs.contract
    prompts = [text for text, _, _ in arguments["held_out"]]
    teacher = [completion for _, completion, _ in arguments["held_out"]]
    alone = arguments["alone"]
    rungs: list[RungReport] = []
    answers: dict[Rung, list[str]] = {}
    for name, told in arguments["rungs"].items():
        rung = Rung(name)
        if "why_not" in told:
            rungs.append(RungReport(rung=rung, why_not=told["why_not"]))
            continue
        answers[rung] = told["completions"]
        rungs.append(
            RungReport(
                rung=rung,
                agreed=agreement(teacher, answers[rung], contract),
                start=None if told["start"] is None else Rung(told["start"]),
                fit=Fit.model_validate(told["fit"]),
                flips=flips(teacher, alone, answers[rung], contract),
                cost=Cost(
                    seconds=told["seconds"],
                    peak_bytes=told["peak_bytes"],
                    device=arguments["device"],
                ),
            )
        )
    base_agreed = Share(n=0, hits=0) if alone is None else agreement(teacher, alone, contract)
    accuracy = None if inputs.kit is None else inputs.kit.kit.source_accuracy
    # It was measured on private tests, which no inputs are known to be like without a filter.
    known = (base_agreed, None if inputs.judge is None else accuracy)
    chosen = _chosen(inputs, rungs, known)
    sampling = _maybe(SamplingReport, arguments["sampling"])
    found = TransferReport(
        provenance=_provenance(inputs),
        base_agreed=base_agreed,
        source_accuracy=accuracy,
        rungs=tuple(rungs),
        chosen=chosen,
        decision=_decision(inputs, rungs, chosen, known, sampling),
        sampling=sampling,
        discriminator=None if inputs.judge is None else inputs.judge.kit.discriminator,
        distances=_maybe(Distances, arguments["distances"]),
        likeness=_maybe(Likeness, arguments["likeness"]),
        disagreements=tuple(disagreements(prompts, teacher, answers[chosen], contract))
        if chosen in answers and not inputs.is_pool_of_others
        else (),
    )
    return with_summary(found, arguments["notes"]).model_dump(mode="json")


def with_summary(found: TransferReport, notes: list[str]) -> TransferReport:
    """The report with its sentences, and with these notes."""
    return found.model_copy(update={"summary": (*found.sentences(), *notes)})


def _chosen(
    inputs: TransferInputs, rungs: list[RungReport], known: tuple[Share, float | None]
) -> Rung:
    """The cheapest of the best ways among those that may be published, or else among all."""
    measured = [(each.rung, each.agreed) for each in rungs if each.agreed is not None]
    fit = [
        (rung, agreed)
        for rung, agreed in measured
        if decide(agreed, *known, inputs.arguments.max_loss).is_published
    ]
    return choose(fit or measured)


def _decision(
    inputs: TransferInputs,
    rungs: list[RungReport],
    chosen: Rung,
    known: tuple[Share, float | None],
    sampling: SamplingReport | None,
) -> Decision:
    """known: agreement of the target alone, and the accuracy of the old adapter if the inputs were
    filtered.
    """
    agreed = next((each.agreed for each in rungs if each.rung == chosen), None)
    if agreed is not None:
        found = decide(agreed, *known, inputs.arguments.max_loss)
        if sampling is None or not sampling.is_refused:
            return found
        why = (
            "it was measured on inputs that the discriminator refused, which say nothing of the"
            " task: make the kit again with more seeds"
        )
        return Decision(is_published=False, promise=None, reasons=(why, *found.reasons))
    asked = inputs.arguments.rungs
    if asked == (Rung.FREEZE.value,):
        why = "only freeze was asked for, which moves nothing"
    else:
        why = "no way to move it could be measured"
    return Decision(is_published=False, promise=None, reasons=(why,))


def _provenance(inputs: TransferInputs) -> Provenance:
    return Provenance(
        adapter=title_of(inputs.adapter),
        source_base=title_of(inputs.source),
        target_base=title_of(inputs.target),
        discriminator_sha256=None
        if inputs.judge is None
        else inputs.judge.kit.discriminator_sha256,
        seed=inputs.arguments.seed,
    )


def _maybe(kind: Any, told: dict[str, Any] | None) -> Any:
    return None if told is None else kind.model_validate_json(json.dumps(told))
