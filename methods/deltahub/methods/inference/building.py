"""Models of transformers that are built without contents, and given their tensors one by one."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Lock, get_ident
from typing import Any, Final
from unittest.mock import patch

import torch
from torch import nn

from deltahub.methods.errors import CannotExport
from deltahub.methods.inference.modules import CompressedModule, Compressible
from deltahub.methods.inference.sources import TORCH_DTYPES

_CONFIG: Final = "config.json"
_GENERATION: Final = "generation_config.json"
_one_builds = Lock()
# By the names in safetensors headers.
STORED_DTYPES: Final[dict[str, torch.dtype]] = {
    **{dtype.name: found for dtype, found in TORCH_DTYPES.items()},
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8,
    "BOOL": torch.bool,
}  # fmt: skip


def empty_model(folder: Path, stored: torch.dtype) -> nn.Module:
    """The model that a folder's config.json describes, whose parameters have no contents.

    stored: the dtype of the weights, which the model has if its configuration names none.
    CannotExport if it is not known to transformers, or needs code of its own.
    """
    import transformers

    config = _config(folder)
    named = {} if getattr(config, "dtype", None) is not None else {"dtype": stored}
    with _empty_parameters():
        model: nn.Module = _class_of(config)._from_config(config, **named)
    if (folder / _GENERATION).is_file() and hasattr(model, "generation_config"):
        generation = transformers.GenerationConfig.from_pretrained(folder)
        setattr(model, "generation_config", generation)  # noqa: B010
    return model


def _config(folder: Path) -> Any:
    import transformers

    try:
        told = json.loads((folder / _CONFIG).read_bytes())
    except (OSError, ValueError) as exc:
        raise CannotExport(f"{folder / _CONFIG} cannot be read: {exc}") from exc
    if not isinstance(told, dict) or not told.get("architectures"):
        raise CannotExport(
            f"{folder / _CONFIG} names no architecture: give the module to load_into yourself"
        )
    if told.get("auto_map"):
        raise CannotExport(
            f"{folder} needs code of its own (auto_map in config.json), which is never run: give"
            " the module to load_into yourself"
        )
    return transformers.AutoConfig.from_pretrained(folder, local_files_only=True)


def _class_of(config: Any) -> Any:
    import transformers

    name = config.architectures[0]
    found = getattr(transformers, name, None)
    if found is None:
        raise CannotExport(
            f"transformers {transformers.__version__} has no {name}: update it, or give the module"
            " to load_into yourself"
        )
    return found


@contextmanager
def _empty_parameters() -> Iterator[None]:
    """Modules that this thread makes have parameters without contents, and buffers with them."""
    with _one_builds:
        register: Callable[..., None] = nn.Module.register_parameter
        builder = get_ident()

        def without_contents(module: nn.Module, name: str, parameter: Any) -> None:
            register(module, name, parameter)
            if parameter is not None and get_ident() == builder:
                module._parameters[name] = nn.Parameter(parameter.to("meta"), requires_grad=False)

        # torch has no other place where all parameters pass before they are initialized.
        with patch.object(nn.Module, "register_parameter", without_contents):
            yield


def places_of(model: nn.Module, told: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """Tensor of a file -> its name in the model. CannotExport if they do not fit.

    told: tensor -> shape.
    """
    shapes = {
        name: tuple(each.shape)
        for name, each in (
            *model.named_parameters(remove_duplicate=False),
            *model.named_buffers(remove_duplicate=False),
        )
    }
    compressed = {
        f"{name}.weight"
        for name, each in model.named_modules(remove_duplicate=False)
        if isinstance(each, CompressedModule)
    }
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    places: dict[str, str] = {}
    for name, shape in told.items():
        candidates = (name, prefix + name, name.removeprefix(prefix))
        place = next((each for each in candidates if each in shapes), None)
        if place is None and any(each in compressed for each in candidates):
            raise CannotExport(
                f"{name} of {type(model).__name__} is compressed already: give the plain model"
            )
        if place is None:
            raise CannotExport(f"{type(model).__name__} has no {name}: give another module")
        if shapes[place] != shape:
            raise CannotExport(f"{place} has shape {shapes[place]}, but {shape} in the file")
        places[name] = place
    filled = {*places.values()} | ties_of(model, places.values()).keys()
    empty = [
        name for name, _ in model.named_parameters(remove_duplicate=False) if name not in filled
    ]
    if empty:
        raise CannotExport(f"the file has no {empty[0]}, which {type(model).__name__} needs")
    return places


def ties_of(model: nn.Module, filled: Collection[str]) -> dict[str, str]:
    """Parameter -> the parameter whose contents it shares. filled: those that a file has."""
    by_id: dict[int, list[str]] = {}
    for name, each in model.named_parameters(remove_duplicate=False):
        by_id.setdefault(id(each), []).append(name)
    given = {*filled}
    ties: dict[str, str] = {}
    for names in by_id.values():
        source = next((name for name in names if name in given), None)
        if source is not None:
            ties |= {name: source for name in names if name not in given}
    for name, source in _declared_ties(model).items():
        if source in given:
            ties[name] = source
        elif name in given:
            ties[source] = name
    return ties


def _declared_ties(model: nn.Module) -> dict[str, str]:
    """Those that a model of transformers names."""
    expand = getattr(model, "get_expanded_tied_weights_keys", None)
    if expand is not None:
        found: Mapping[str, str] = expand(all_submodels=True)
        return dict(found)
    names = getattr(model, "_tied_weights_keys", None) or ()
    config: Any = getattr(model, "config", None)
    if not names or not getattr(config, "tie_word_embeddings", False):
        return {}
    embeddings: Any = model.get_input_embeddings()  # type: ignore[operator]
    source = next(name for name, each in model.named_modules() if each is embeddings)
    return {name: f"{source}.weight" for name in names if name.endswith(".weight")}


def owner_of(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, last = name.rpartition(".")
    return model.get_submodule(path), last


def put(owner: nn.Module, last: str, plain: torch.Tensor) -> None:
    """A plain tensor as a parameter or buffer: on the module's device, a parameter in its dtype."""
    had = owner._parameters[last] if last in owner._parameters else owner._buffers[last]
    assert had is not None, "its name was listed"
    if not had.is_meta:
        plain = plain.to(had.device)
    if last in owner._parameters:
        value = plain.to(had.dtype) if plain.is_floating_point() else plain
        owner._parameters[last] = nn.Parameter(value, requires_grad=False)
    else:
        owner._buffers[last] = plain


def plain_tensor(name: str, dtype: str, shape: tuple[int, ...], data: memoryview) -> torch.Tensor:
    """A copy of a file's tensor. CannotExport for a dtype that torch lacks."""
    if dtype not in STORED_DTYPES:
        raise CannotExport(f"{name} has dtype {dtype}, which torch lacks")
    if not len(data):
        return torch.empty(shape, dtype=STORED_DTYPES[dtype])
    return torch.frombuffer(bytearray(data), dtype=STORED_DTYPES[dtype]).view(shape)


def share_ties(model: nn.Module, ties: Mapping[str, str]) -> None:
    """Let tied parameters share the contents of the others, compressed or plain.

    ties: as ties_of told them before any parameter was replaced.
    """
    for place, source in ties.items():
        owner, last = owner_of(model, place)
        shared, given = owner_of(model, source)
        if isinstance(shared, CompressedModule) and Compressible.has(owner):
            Compressible.compress(owner, shared.source, shared.workspace)
        elif last in owner._parameters and given in shared._parameters:
            owner._parameters[last] = shared._parameters[given]
