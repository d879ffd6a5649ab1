"""The step that maps an adapter through the activations of both bases.

Activations of the source are written to files, so that only one base is in memory; modules are
taken in groups, so that their activations fit into it, too.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from deltahub.methods.adapters.names import ENDING_OF, PREFIX, Kind, part_of
from deltahub.methods.errors import CannotTransfer
from deltahub.methods.transfer.estimate import RECORDED_BYTES
from deltahub.methods.transfer.rungs.activation_map import (
    Activations,
    map_adapter,
    match_layers,
    name_in_target,
)
from deltahub.methods.transfer.rungs.copying import moved_config
from deltahub.registry.uploads.limits import require_room
from deltahub.workers.compute.context import ComputeContext
from deltahub.workers.jobs.adapters.tensors import read_values
from deltahub.workers.jobs.transfer.inputs import TransferInputs, load_inputs
from deltahub.workers.jobs.transfer.making import made, store_adapter
from deltahub.workers.jobs.transfer.resident import Resident, resident, scratch

Values = npt.NDArray[np.float64]

_NUMBER_BYTES: Final = 8
# Places at which layers are compared. Their likeness needs fewer than the maps.
_MATCHED_PLACES: Final = 256


def map_activations(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: as in making.py. arguments: learnt: as there; device."""
    began = time.monotonic()
    inputs = load_inputs(context, arguments)
    texts = [inputs.contract.prompt_of(text) + answer for text, answer, _ in arguments["learnt"]]
    try:
        tensors, modules = _mapped(context, inputs, texts, arguments)
        config = moved_config(
            inputs.config,
            inputs.target.name,
            inputs.target.commit,
            modules,
            is_named=not inputs.has_same_modules,
        )
    except CannotTransfer as error:
        return {"why_not": str(error)}
    return made(store_adapter(context, inputs, tensors), config, began)


def _mapped(
    context: ComputeContext, inputs: TransferInputs, texts: Sequence[str], step: Mapping[str, Any]
) -> tuple[dict[str, Values], dict[str, str]]:
    """(the tensors of the moved adapter, module of the source -> of the target)"""
    from deltahub.methods.transfer.models.activations import MOST_POSITIONS, common_ends, token_ends

    changed = sorted({part_of(name).module for name in inputs.adapter.tensors})
    folder = scratch(context, "activations")
    width = max(sum(shape) for shape in (_shape(inputs, module) for module in changed))
    room = len(changed) * MOST_POSITIONS * width * _NUMBER_BYTES
    require_room(context.registry, room, "activations of the old base need")
    source = resident(context, inputs, "source", step)
    n_layers = _n_layers(source)
    # Both tokenizers are needed before the first base runs: a target's is in its small files.
    ends = common_ends(
        token_ends(source.tokenizer, texts), token_ends(_tokenizer(context, inputs), texts)
    )
    shown = _Shown(context, texts, ends, MOST_POSITIONS * width * _NUMBER_BYTES)
    by_layer = _one_of_each_layer(changed, n_layers)
    own_layers: dict[str, Values] = {}
    for name, found in shown.by(source, changed):
        _write(folder, name, found)
        if name in by_layer.values():
            own_layers[name] = _reduced(found.inputs)
    target = resident(context, inputs, "target", step)
    layers = _matched(shown, target, by_layer, own_layers)
    partners = {name: name_in_target(name, layers) for name in changed}
    modules = {name: each for name, each in partners.items() if each is not None}
    origin = {each: name for name, each in modules.items()}
    tensors: dict[str, Values] = {}
    for name, found in shown.by(target, sorted(origin)):
        own = _factors(context, inputs, origin[name])
        mapped, about = map_adapter(
            own,
            {origin[name]: name},
            {origin[name]: _read(folder, origin[name])},
            {name: found},
        )
        tensors |= mapped
        fit = about[name]
        context.log(f"{name}: inputs {fit.input_fit:.3f}, outputs {fit.output_fit:.3f} of 1")
    if not tensors:
        raise CannotTransfer("no layer of the adapter has a partner in the new base")
    return tensors, modules


class _Shown:
    """Texts that are shown to both bases. module_bytes: that one module's activations take."""

    def __init__(
        self,
        context: ComputeContext,
        texts: Sequence[str],
        ends: Sequence[Sequence[int]],
        module_bytes: int,
    ) -> None:
        self._context = context
        self._texts = texts
        self._ends = ends
        self._size = max(RECORDED_BYTES // module_bytes, 1)

    def by(self, base: Resident, modules: Sequence[str]) -> Iterator[tuple[str, Activations]]:
        """The activations of each module, some modules at a time."""
        from deltahub.methods.transfer.models.activations import record

        for start in range(0, len(modules), self._size):
            group = modules[start : start + self._size]
            found = record(
                base.model,
                base.tokenizer,
                self._texts,
                self._ends,
                group,
                lambda done, total, start=start: self._context.report(  # type: ignore[misc]
                    "record activations", start * total + done, len(modules) * total
                ),
            )
            yield from found.items()


def _matched(
    shown: _Shown, target: Resident, by_layer: dict[int, str], own: dict[str, Values]
) -> dict[int, int]:
    """Source layer -> target layer."""
    n = _n_layers(target)
    pattern = by_layer[min(by_layer)]
    names = {layer: str(name_in_target(pattern, {min(by_layer): layer})) for layer in range(n)}
    seen = {name: _reduced(found.inputs) for name, found in shown.by(target, list(names.values()))}
    places = sorted(by_layer)
    found = match_layers(
        [own[by_layer[place]] for place in places], [seen[names[layer]] for layer in range(n)]
    )
    return {places[i]: layer for i, layer in found.items()}


def _one_of_each_layer(modules: Sequence[str], n_layers: int) -> dict[int, str]:
    """Layer -> one of its modules, whose kind all of these layers have."""
    of_layer: dict[int, dict[str, str]] = {}
    for module in modules:
        parts = module.split(".")
        numbers = [i for i, part in enumerate(parts) if part.isdecimal()]
        if numbers and int(parts[numbers[0]]) < n_layers:
            rest = ".".join(parts[numbers[0] + 1 :])
            of_layer.setdefault(int(parts[numbers[0]]), {})[rest] = module
    shared = set.intersection(*(set(each) for each in of_layer.values())) if of_layer else set()
    if not shared:
        raise CannotTransfer(
            "the adapter changes other modules in each layer, so that its layers cannot be matched:"
            " train it on the new base instead"
        )
    kind = min(shared)
    return {layer: each[kind] for layer, each in of_layer.items()}


def _reduced(values: Values) -> Values:
    """Fewer rows and columns with the same inner products, which is all that likeness needs."""
    some = values[:_MATCHED_PLACES]
    _, triangle = np.linalg.qr(some.T)
    return np.ascontiguousarray(triangle.T)


def _n_layers(base: Resident) -> int:
    config = base.model.config
    found = getattr(config.get_text_config(), "num_hidden_layers", None)
    if type(found) is not int:
        raise CannotTransfer("a base does not tell its number of layers (num_hidden_layers)")
    return found


def _tokenizer(context: ComputeContext, inputs: TransferInputs) -> Any:
    from deltahub.methods.transfer.models.adapters import load_tokenizer
    from deltahub.workers.jobs.model_folder import small_files, write_file

    folder = scratch(context, "tokenizer")
    for file in small_files(inputs.target):
        write_file(context, file.row, folder / file.path)
    return load_tokenizer(folder)


def _shape(inputs: TransferInputs, module: str) -> tuple[int, ...]:
    found = inputs.source.tensors.get(f"{module}.weight")
    if found is None:
        raise CannotTransfer(
            f"the adapter changes {module}, which {inputs.source.title} does not have under this"
            " name: train it on the new base instead"
        )
    return tuple(found.ref.shape)


def _factors(context: ComputeContext, inputs: TransferInputs, module: str) -> dict[str, Values]:
    names = [PREFIX + module + ENDING_OF[kind] for kind in (Kind.A, Kind.B)]
    own = inputs.adapter.tensors
    return {name: read_values(context, own[name], inputs.adapter.title) for name in names}


def _write(folder: Path, name: str, found: Activations) -> None:
    np.savez(folder / f"{name}.npz", inputs=found.inputs, outputs=found.outputs)


def _read(folder: Path, name: str) -> Activations:
    with np.load(folder / f"{name}.npz", allow_pickle=False) as found:
        return Activations(found["inputs"], found["outputs"])
