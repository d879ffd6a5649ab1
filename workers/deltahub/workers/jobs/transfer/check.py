"""The first step of a move: which ways apply, and what they will take."""

import json
import math
import os
import resource
from collections.abc import Callable
from typing import Any, Final

from deltahub.methods.errors import CannotMerge, CannotTransfer
from deltahub.methods.evaluation.exact_match import check_model, device_of, require_packages
from deltahub.methods.kinds.transfer_adapter import RungName
from deltahub.methods.transfer.base_size import BaseSize
from deltahub.methods.transfer.estimate import (
    CPU,
    GPU,
    RungEstimate,
    Texts,
    TransferEstimate,
    drawing_s,
    guessed_length,
    mapping_bytes,
    mapping_s,
    measuring_s,
    memory_of,
    needs_compression,
    reading_s,
    starting_s,
    teaching_s,
    training_s,
)
from deltahub.methods.transfer.measures.gate import Rung
from deltahub.methods.transfer.rungs.activation_map import require_linear
from deltahub.methods.transfer.rungs.copying import copied_modules, require_plain_lora
from deltahub.registry.errors import InvalidRequest
from deltahub.registry.results.inputs import InputModel, read_input
from deltahub.registry.uploads.limits import require_room
from deltahub.workers.compute.context import ComputeContext
from deltahub.workers.jobs.model_folder import small_files, weight_files
from deltahub.workers.jobs.transfer.inputs import (
    CONFIG,
    TransferInputs,
    load_inputs,
    shapes_of,
)

# Reading a matrix of both bases, and adding the mapped factors, takes about so long.
_COPIED_BYTES_S: Final = 2e8
_TOKENIZER: Final = "tokenizer.json"
# Draws for each input that is new: a base repeats itself.
_NEW_TIMES: Final = 1.3
_FACTOR_BYTES: Final = 4
_NO_INPUTS: Final = (
    "nothing shows what its task looks like: make a kit where its private data are (deltahub"
    " adapter kit), or give inputs by --prompts"
)


def check(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: {"estimate": TransferEstimate, "device": where models run, "compressed": whether the
    source is held so, "kit", "pool": ids of the kits, "is_pool_of_others"}.

    CannotTransfer for models that no job can run, or that do not fit into the memory.
    """
    inputs = load_inputs(context, arguments)
    device = device_for(context, inputs.arguments.device)
    require_causal(context, inputs.source, inputs.target)
    estimate = estimate_of(context, inputs, device)
    estimate.require_memory(inputs.target.title)
    if estimate.possible:
        require_room(context.registry, estimate.disk_bytes, "a base to be run needs")
    return {
        "estimate": estimate.model_dump(mode="json"),
        "device": device.partition(":")[0],
        "compressed": estimate.compressed,
        **inputs.kits,
        "is_pool_of_others": inputs.is_pool_of_others,
    }


def device_for(context: ComputeContext, asked: str) -> str:
    """Where models run. CannotTransfer without the packages that run them, or the device."""
    try:
        require_packages()
        return device_of(context.device(asked))
    except CannotMerge as error:
        raise CannotTransfer(str(error)) from error


def require_causal(context: ComputeContext, *models: InputModel) -> None:
    """CannotTransfer for a model that writes no text."""
    for model in models:
        try:
            kind = check_model(_config_of(context, model), model.title)
        except CannotMerge as error:
            raise CannotTransfer(str(error)) from error
        if kind != "causal":
            raise CannotTransfer(
                f"{model.title} is a {kind}: only adapters of causal models can be moved"
            )


def _config_of(context: ComputeContext, model: InputModel) -> bytes:
    return read_input(context.registry, context.reader, model, CONFIG)


def estimate_of(context: ComputeContext, inputs: TransferInputs, device: str) -> TransferEstimate:
    """What a move will take, way by way. device: where models run."""
    source, target = (_size(context, each) for each in (inputs.source, inputs.target))
    machine = CPU if device == "cpu" else GPU
    n, budget = inputs.n, inputs.arguments.budget
    # Without a filter hardly more are drawn than are kept.
    n_drawn = n * (budget if inputs.judge is not None else 2)
    texts = Texts.of(
        inputs.examples,
        n,
        min(math.ceil(n / _acceptance(inputs)), n_drawn),
        inputs.contract.max_new_tokens,
        _token_counter(context, inputs.target),
        inputs.contract.prompt_of,
    )
    recipe = inputs.recipe()
    allowed = _allowed(device)
    own = memory_of(target, texts, is_trained=False)
    is_compressed = inputs.arguments.compressed
    if is_compressed is None:
        is_compressed = needs_compression(source, texts, allowed)
    teacher = memory_of(source.compressed if is_compressed else source, texts, is_trained=False)
    answering = max(teacher, own)
    training = max(answering, memory_of(target, texts, is_trained=True))
    measured = measuring_s(target, machine, texts)
    trained = training_s(target, machine, texts, recipe) + measured
    copied = 2 * sum(_bytes(each) for each in (inputs.source, inputs.target)) / _COPIED_BYTES_S
    mapping = answering + mapping_bytes(source, target, texts)
    mapped = mapping_s(source, target, machine, texts)
    costs = {
        Rung.FREEZE: (0, 0.0),
        Rung.COPY: (answering, copied + measured),
        Rung.ACTIVATION_MAP: (mapping, mapped + measured),
        Rung.TRANS_LORA: (training, trained),
        Rung.TITOK: (training, trained + 2 * reading_s(source, machine, n, texts.expected)),
    }
    rungs = tuple(
        RungEstimate(
            rung=rung,
            memory_bytes=costs[rung][0],
            seconds=costs[rung][1],
            device=device.partition(":")[0],
            why_not=_why_not(inputs, rung),
        )
        for rung in Rung
        if inputs.arguments.tries(_name(rung))
    )
    possible = [each for each in rungs if each.why_not is None and each.rung != Rung.FREEZE]
    is_judged = inputs.judge is not None
    # What others of the task have made up, or will, takes no time here.
    drawing = 0.0 if inputs.is_served else drawing_s(target, machine, texts)
    shared = starting_s(source, target, machine) + drawing + measured
    shared += teaching_s(source, machine, texts, is_judged=is_judged, is_compressed=is_compressed)
    return TransferEstimate(
        n_inputs=n,
        n_draws=n_drawn,
        result_bytes=_result_bytes(inputs, recipe.rank),
        disk_bytes=max(_bytes(each) for each in (inputs.source, inputs.target)),
        memory_bytes=max((each.memory_bytes for each in possible), default=0),
        allowed_bytes=allowed,
        seconds=sum(each.seconds for each in possible) + (shared if possible else 0),
        drawing_seconds=drawing if possible else 0,
        device=device.partition(":")[0],
        compressed=is_compressed,
        saved_bytes=source.weight_bytes - source.compressed.weight_bytes,
        rungs=rungs,
        missing=tuple(_missing(inputs)),
    )


def _acceptance(inputs: TransferInputs) -> float:
    """The share of drawn inputs that is about kept: what the discriminator keeps of those that the
    old base made up, and without one all that are no duplicates.
    """
    if inputs.judge is None:
        return 1 / _NEW_TIMES
    at_zero = (each for each in inputs.judge.kit.discriminator.thresholds if each.margin == 0)
    kept = next((each.synthetic_kept for each in at_zero), 0.0)
    return max(kept / _NEW_TIMES, 1 / inputs.arguments.budget)


def _token_counter(context: ComputeContext, model: InputModel) -> Callable[[str], int]:
    """Counts a text's tokens, by tokenizer.json where the model has one that can be read."""
    key = f"tokenizer {model.revision_id}"
    found = context.memo.get(key)
    if found is None:
        found = context.memo[key] = _loaded_counter(context, model)
    counter: Callable[[str], int] = found
    return counter


def _loaded_counter(context: ComputeContext, model: InputModel) -> Callable[[str], int]:
    from tokenizers import Tokenizer

    if not any(file.path == _TOKENIZER for file in model.files):
        return guessed_length
    try:
        data = read_input(context.registry, context.reader, model, _TOKENIZER)
    except InvalidRequest:  # it is large
        return guessed_length
    try:
        tokenizer = Tokenizer.from_str(data.decode())
    except Exception:  # the library has no class of its own for what it cannot read
        return guessed_length
    return lambda text: len(tokenizer.encode(text).ids)


def _why_not(inputs: TransferInputs, rung: Rung) -> str | None:
    """Why a way cannot be taken, as far as it is known before any model runs."""
    if rung == Rung.FREEZE:
        return None
    if not inputs.seeds:
        return _NO_INPUTS
    names, title = inputs.adapter.tensors.keys(), inputs.adapter.title
    try:
        if rung == Rung.COPY:
            shapes = (shapes_of(inputs.source), shapes_of(inputs.target))
            copied_modules(inputs.config, names, *shapes, title)
        elif rung == Rung.ACTIVATION_MAP:
            require_plain_lora(inputs.config, title)
            require_linear(names)
    except CannotTransfer as error:
        return str(error)
    if rung == Rung.TRANS_LORA and inputs.judge is None:
        return inputs.no_kit if inputs.kit is None else inputs.kit.fault
    return None


def _missing(inputs: TransferInputs) -> list[str]:
    if inputs.kit is None and inputs.no_kit is not None:
        return [inputs.no_kit]
    if inputs.kit is not None and inputs.kit.fault is not None:
        return [f"the kit's discriminator is not used: {inputs.kit.fault}"]
    return []


def _size(context: ComputeContext, model: InputModel) -> BaseSize:
    config = json.loads(_config_of(context, model))
    tensors = [
        (each.ref.dtype, tuple(each.ref.shape), each.ref.size) for each in model.tensors.values()
    ]
    return BaseSize.of(config, tensors)


def _bytes(model: InputModel) -> int:
    return sum(file.size for file in (*small_files(model), *weight_files(model)))


def _result_bytes(inputs: TransferInputs, rank: int) -> int:
    """Of the adapter as it is, or of a student with factors for as many of the target's modules."""
    own = sum(each.ref.size for each in inputs.adapter.tensors.values())
    targets = inputs.recipe().targets or ("q_proj", "v_proj")
    student = sum(
        rank * sum(each.ref.shape) * _FACTOR_BYTES
        for name, each in inputs.target.tensors.items()
        if len(each.ref.shape) == 2 and name.removesuffix(".weight").endswith(targets)
    )
    return max(own, student)


def _allowed(device: str) -> int:
    """Bytes that the models may take: on a GPU those that are free, else the process's own limit,
    and no more than the machine has.
    """
    if device != "cpu":
        import torch

        free, _ = torch.cuda.mem_get_info(torch.device(device))
        return int(free)
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return machine if limit == resource.RLIM_INFINITY else min(limit, machine)


def _name(rung: Rung) -> RungName:
    return rung.value
