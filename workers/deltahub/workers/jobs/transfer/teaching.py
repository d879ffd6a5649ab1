"""Steps of the old adapter on its own base: its answers, and what they show of it."""

from collections.abc import Mapping
from dataclasses import astuple
from typing import Any

from deltahub.methods.errors import CannotTransfer
from deltahub.methods.transfer.report import Distances
from deltahub.workers.compute.context import ComputeContext
from deltahub.workers.jobs.transfer.inputs import TransferInputs, load_inputs
from deltahub.workers.jobs.transfer.resident import Resident, adapter_files, resident


def label(context: ComputeContext, arguments: dict[str, Any]) -> list[tuple[str, bool] | None]:
    """Step: the old adapter's greedy completion of each of `texts`, and whether it ended by itself;
    None for one that the source cannot read. arguments: device.
    """
    from deltahub.methods.transfer.models import students
    from deltahub.methods.transfer.models.encoding import fits

    inputs = load_inputs(context, arguments)
    base = teacher(context, inputs, arguments)
    texts: list[str] = arguments["texts"]
    readable = [
        i for i, each in enumerate(texts) if fits(base.model, base.tokenizer, each, inputs.contract)
    ]
    labelled = students.label(
        base.model,
        base.tokenizer,
        [texts[i] for i in readable],
        inputs.contract,
        on_progress=lambda done, total: context.report("answer as the old adapter", done, total),
    )
    found: list[tuple[str, bool] | None] = [None] * len(texts)
    for i, each in zip(readable, labelled, strict=True):
        found[i] = each.completion, each.is_whole
    return found


def divide(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, list[int]]:
    """Step: {"learnt", "held_out": places among `n` inputs}; both empty if they are too few."""
    from deltahub.methods.transfer.models.students import hold_out

    inputs = load_inputs(context, arguments)
    try:
        learnt, held_out = hold_out(range(arguments["n"]), inputs.arguments.seed)
    except CannotTransfer as error:
        context.log(str(error))
        return {"learnt": [], "held_out": []}
    return {"learnt": learnt, "held_out": held_out}


def distances(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: Distances of `accepted` inputs, and of some that were `drawn`. arguments: device."""
    from deltahub.methods.transfer.measures.distances import median_gamma, squared_mmd
    from deltahub.methods.transfer.models.embeddings import embed

    inputs = load_inputs(context, arguments)
    base = resident(context, inputs, "source", arguments)
    kept, pool = (
        embed(
            base.model,
            base.tokenizer,
            texts,
            lambda done, total: context.report("compare the inputs", done, total),
        )
        for texts in (arguments["accepted"], arguments["drawn"])
    )
    sketch = None if inputs.kit is None else inputs.kit.kit.sketch
    if sketch is not None and sketch.width != kept.shape[1]:
        sketch = None  # of another base
    gamma = median_gamma(pool) if sketch is None else sketch.gamma
    apart = squared_mmd(kept, pool, gamma)
    found = Distances(
        gamma=gamma,
        unfiltered_to_private=None if sketch is None else sketch.squared_distance(pool),
        filtered_to_private=None if sketch is None else sketch.squared_distance(kept),
        noise_error=None if sketch is None else sketch.comparison_error(apart),
        filtered_to_unfiltered=apart,
    )
    return found.model_dump(mode="json")


def choose(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: {"chosen": completions with the most excess, and which of their tokens}, or
    {"why_not"}. arguments: learnt: (input, completion, is_whole) of each; device.
    """
    from deltahub.methods.transfer.models import excess
    from deltahub.methods.transfer.models.students import Labelled

    inputs = load_inputs(context, arguments)
    base = teacher(context, inputs, arguments)
    try:
        found = excess.choose(
            base.model,
            base.tokenizer,
            [Labelled(*each) for each in arguments["learnt"]],
            inputs.contract,
            on_progress=lambda done, total: context.report("find the excess", done, total),
        )
    except CannotTransfer as error:
        return {"why_not": str(error)}
    chosen = [
        {
            "labelled": list(astuple(each.labelled)),
            "spans": [list(span) for span in each.spans],
            "tokens": [bool(token) for token in each.tokens],
        }
        for each in found
    ]
    return {"chosen": chosen}


def teacher(context: ComputeContext, inputs: TransferInputs, step: Mapping[str, Any]) -> Resident:
    """The source base with the old adapter. step: its arguments. CannotTransfer if PEFT cannot load
    it.
    """
    from deltahub.methods.adapters.lora import WEIGHTS_FILE
    from deltahub.methods.transfer.models.adapters import TEACHER

    base = resident(context, inputs, "source", step)
    (row,) = [file.row for file in inputs.adapter.files if file.path == WEIGHTS_FILE]
    base.add(context, TEACHER, adapter_files(inputs.config, row))
    return base
