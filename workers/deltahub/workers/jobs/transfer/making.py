"""Steps that make an adapter of the target, one for each way.

Each returns {"row": of the weights, "config": adapter_config.json, "seconds", "peak_bytes"}, or
{"why_not"} if the way cannot be taken.
"""

import resource
import sys
import time
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from deltahub.methods.adapters.lora import CONFIG_FILE, WEIGHTS_FILE
from deltahub.methods.errors import CannotTransfer, MethodError
from deltahub.methods.transfer.recipe import Recipe
from deltahub.methods.transfer.rungs.copying import (
    Likeness,
    copied_modules,
    cosine,
    moved_config,
)
from deltahub.methods.transfer.rungs.warm_start import warm_start
from deltahub.registry.results.files import FileMaker
from deltahub.registry.results.tensors import MadePack
from deltahub.workers.compute.context import ComputeContext
from deltahub.workers.jobs.adapters.tensors import made_ref, read_matrix, store_values
from deltahub.workers.jobs.model_folder import write_file
from deltahub.workers.jobs.transfer.inputs import TransferInputs, load_inputs, shapes_of
from deltahub.workers.jobs.transfer.resident import resident, scratch, unload

_RSS_UNIT: Final = 1 if sys.platform == "darwin" else 1024
# Of a student that is trained, or an update that is computed.
_DTYPE: Final = "F32"


def copy(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: the adapter as it is, with a configuration for the target. Also "likeness", of the
    matrices that it changes.
    """
    began = time.monotonic()
    inputs = load_inputs(context, arguments)
    shapes = (shapes_of(inputs.source), shapes_of(inputs.target))
    try:
        changed = copied_modules(
            inputs.config, inputs.adapter.tensors.keys(), *shapes, inputs.adapter.title
        )
        config = moved_config(
            inputs.config,
            inputs.target.name,
            inputs.target.commit,
            {each: each for each in changed.values()},
            is_named=not inputs.has_same_modules,
        )
    except CannotTransfer as error:
        return {"why_not": str(error)}
    cosines = {}
    for i, (tensor, module) in enumerate(changed.items()):
        context.report("compare the bases", i, len(changed))
        own, other = inputs.source.tensors[tensor], inputs.target.tensors[tensor]
        if own.ref.tensor == other.ref.tensor:
            cosines[module] = 1.0
            continue
        try:
            cosines[module] = cosine(
                read_matrix(context, own, inputs.source.title),
                read_matrix(context, other, inputs.target.title),
            )
        except MethodError as error:
            return {"why_not": str(error)}
    (row,) = [file.row for file in inputs.adapter.files if file.path == WEIGHTS_FILE]
    likeness = Likeness(cosines=cosines).model_dump(mode="json")
    return made(row, config, began) | {"likeness": likeness}


def train(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: a student of the old adapter. Also "start": the way that it started from, if any.

    arguments: learnt: (input, completion, is_whole) of each, or chosen: as teaching.choose returns
    them; start: (way, what it made), None for a fresh student; device.
    """
    from deltahub.methods.transfer.models.adapters import STUDENT, save_adapter
    from deltahub.methods.transfer.models.students import train_student

    began = time.monotonic()
    inputs = load_inputs(context, arguments)
    recipe = inputs.recipe()
    given = arguments["start"]
    for start in (None,) if given is None else (given, None):
        unload(context)  # a base that has other adapters would keep them while this one is trained
        base = resident(context, inputs, "target", arguments)
        try:
            base.model, losses = train_student(
                base.model,
                _examples(inputs, base.tokenizer, arguments),
                recipe,
                warm_start=None if start is None else _start(context, start[1], recipe),
                on_progress=lambda done, total: context.report("train the student", done, total),
            )
            break
        except CannotTransfer as error:
            if start is None:
                unload(context)
                return {"why_not": str(error)}
            context.log(f"the student starts fresh, and not from {start[0]}, because {error}")
    context.log(
        f"trained {recipe.epochs} epochs: the loss went {losses[0]:.3f} -> {losses[-1]:.3f}"
    )
    folder = scratch(context, "student")
    save_adapter(base.model, STUDENT, folder, inputs.target.name, inputs.target.commit)
    unload(context)
    row = store_adapter(context, inputs, _arrays(folder / WEIGHTS_FILE))
    found = made(row, (folder / CONFIG_FILE).read_bytes(), began)
    return found | {"start": None if start is None else start[0]}


def _start(context: ComputeContext, port: Mapping[str, Any], recipe: Recipe) -> dict[str, Any]:
    """The tensors that a student begins as. port: as a step of this kind returns it."""
    from safetensors.torch import load_file

    path = scratch(context, "start") / WEIGHTS_FILE
    write_file(context, port["row"], path)
    return warm_start(port["config"].encode(), load_file(path), recipe, "the old adapter")


def _examples(inputs: TransferInputs, tokenizer: Any, arguments: dict[str, Any]) -> list[Any]:
    from deltahub.methods.transfer.models.excess import Chosen, encode_chosen
    from deltahub.methods.transfer.models.students import Labelled, encode_all

    if "learnt" in arguments:
        labelled = [Labelled(*each) for each in arguments["learnt"]]
        return encode_all(tokenizer, labelled, inputs.contract)
    chosen = [
        Chosen(
            Labelled(*each["labelled"]),
            tuple((start, end) for start, end in each["spans"]),
            np.asarray(each["tokens"], dtype=np.bool_),
        )
        for each in arguments["chosen"]
    ]
    same = inputs.has_same_tokenizer
    return encode_chosen(tokenizer, chosen, inputs.contract, is_same_tokenizer=same)


def store_adapter(
    context: ComputeContext,
    inputs: TransferInputs,
    tensors: Mapping[str, npt.NDArray[np.float64]],
) -> int:
    """The row of a file of weights. tensors: under PEFT's names."""
    domain = inputs.grant.domain_id
    with MadePack(context.registry, context.reader, domain, context.job_id) as pack:
        made = [
            store_values(context, pack, values, _DTYPE, name)
            for name, values in sorted(tensors.items())
        ]
        pack.store(0)
    maker = FileMaker(context.registry, context.reader, domain, context.job_id)
    return maker.new_file([made_ref(each) for each in made], {"format": "pt"})


def made(row: int, config: bytes, began: float) -> dict[str, Any]:
    """What a step of this kind returns. began: of time.monotonic()."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT
    return {
        "row": row,
        "config": config.decode(),
        "seconds": time.monotonic() - began,
        "peak_bytes": peak,
    }


def _arrays(path: Any) -> dict[str, npt.NDArray[np.float64]]:
    from safetensors.torch import load_file

    return {name: each.double().numpy() for name, each in load_file(path).items()}
