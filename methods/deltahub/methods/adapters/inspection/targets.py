"""The tensors of the base that an adapter's modules change, and those that it should change."""

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from deltahub.methods.adapters.inspection.config import AdapterConfig
from deltahub.methods.adapters.inspection.shapes import TensorShape
from deltahub.methods.adapters.names import BaseNames, endings

_EMBEDDINGS: Final = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight")
HEAD: Final = "lm_head.weight"


class Targets:
    """Finds the base's tensor of each module. A base's file and the model in memory, by which an
    adapter names its modules, may differ in the beginnings of names.
    """

    def __init__(self, base: Mapping[str, TensorShape]) -> None:
        self._names = BaseNames(base)
        self._embeddings = [name for name in base if name.endswith(_EMBEDDINGS)]

    def find(self, name: str) -> str | None:
        """The tensor that the name means; None if there is none, or there are several."""
        found = self._candidates(name)
        return found[0] if len(found) == 1 else None

    def is_ambiguous(self, name: str) -> bool:
        """Whether the name may mean several tensors."""
        return len(self._candidates(name)) > 1

    def _candidates(self, name: str) -> list[str]:
        name = name.replace(".base_layer", "")  # PEFT wraps a module once for each parameter
        found = self._names.find(name)
        if not found and name.endswith(HEAD):
            # A head that is tied to the embedding is not stored.
            found = self._embeddings
        return found or _closest(name, self._names.find(_from_layer(name)))


def _from_layer(name: str) -> str:
    """`model.language_model.layers.0.mlp` -> `layers.0.mlp`."""
    parts = name.split(".")
    first = next((i for i, part in enumerate(parts) if part.isdecimal()), None)
    return ".".join(parts[max(first - 1, 0) :]) if first is not None else name


def _closest(name: str, candidates: list[str]) -> list[str]:
    words = set(name.split("."))
    shared = {each: len(words & set(each.split("."))) for each in candidates}
    most = max(shared.values(), default=0)
    return [each for each, count in shared.items() if count == most]


def missing_targets(
    config: AdapterConfig, base: Mapping[str, TensorShape], changed: Collection[str]
) -> Iterator[str]:
    """The base's tensors that target_modules names, and that the adapter has no weights for though
    it has some for the same layer.

    changed: the base's tensors that the adapter changes. Names alone are read: an expression may
    mean anything, and layers without any weights may be those of a part that was not trained,
    such as a vision tower.
    """
    is_partial = (
        config.layers_to_transform is not None
        or config.exclude_modules
        or config.layer_replication is not None
        or config.target_parameters
    )
    if is_partial or not isinstance(config.target_modules, tuple):
        return
    targets = {f"{target}.weight" for target in config.target_modules}
    layers = {_layer(name) for name in changed}
    for name, tensor in base.items():
        if name in changed or len(tensor.shape) != 2 or ".experts." in name:
            continue
        if _layer(name) in layers and not targets.isdisjoint([name, *endings(name)]):
            yield name


def _layer(name: str) -> str:
    """`model.layers.0.mlp.up_proj.weight` -> `model.layers.0`; without a number, nothing."""
    parts = name.split(".")
    first = next((i for i, part in enumerate(parts) if part.isdecimal()), -1)
    return ".".join(parts[: first + 1])
