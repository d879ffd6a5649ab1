"""Which modules an adapter changes, by which rank and scale, and whether it fits its base."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from deltahub.methods.adapters.inspection.config import AdapterConfig
from deltahub.methods.adapters.inspection.shapes import (
    TensorShape,
    fits_base,
    fits_vocabulary,
    rank_of,
)
from deltahub.methods.adapters.inspection.targets import Targets, missing_targets
from deltahub.methods.adapters.names import (
    ENDING_OF,
    OTHER_FACTOR,
    PREFIX,
    Kind,
    Part,
    endings,
    part_of,
    quoted,
)
from deltahub.methods.adapters.patterns import values_of

__all__ = ["Fit", "Module", "TensorShape", "check_fit"]

HEADS = "heads"
BIASES = "biases"
EMBEDDINGS = "embeddings"
# Of one fault.
_NAMES_SHOWN = 3
_SENTENCES_SHOWN = 20


@dataclass(frozen=True)
class Module:
    """One module that the adapter changes by scale * B A.

    name: in the base. target: the base's tensor; None if the base is not at hand, or does not have
    it. rank: that of the tensors.
    """

    name: str
    target: str | None
    rank: int
    alpha: float
    scale: float
    is_embedding: bool = False


@dataclass(frozen=True)
class Fit:
    """What an adapter consists of, and what is wrong with it.

    extras: what there is beside factors of linear modules -> names of its tensors. Keys: `heads`
    and `biases` (tensors in place of the base's), `embeddings` (factors of embeddings), and the
    values of Kind. faults: sentences; without one the adapter is whole and fits. notes: sentences
    on what could not be checked.
    """

    modules: tuple[Module, ...] = ()
    extras: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ranks(self) -> list[int]:
        """The ranks of the modules, each once."""
        return sorted({module.rank for module in self.modules})

    @property
    def scales(self) -> list[float]:
        """The scales of the modules, each once."""
        return sorted({module.scale for module in self.modules})


def check_fit(
    config: AdapterConfig,
    tensors: Mapping[str, TensorShape],
    base: Mapping[str, TensorShape] | None,
    title: str,
    base_title: str,
) -> Fit:
    """What the adapter consists of, and whether it fits its base.

    tensors, base: all tensors of the adapter and of the base, by name; without a base (None) only
    the adapter itself is checked. title, base_title: what messages call them. An adapter that is no
    LoRA is not looked into. BadAdapter for patterns that cannot be read.
    """
    if not tensors:
        return Fit(faults=(f"{title} has a configuration and no weights: push them, too",))
    if not config.is_lora:
        return Fit(notes=(f"the hub does not look into adapters of type {config.peft_type}",))
    check = _Check(config, tensors, base)
    modules = check.modules()
    check.find_faults_of_extras()
    if base is not None:
        check.find_missing({module.target for module in modules if module.target})
    if not modules and not check.faults:
        check.faults["has no factors A and B: save it again with PEFT"] = []
    return Fit(
        modules,
        check.extras(),
        _sentences(check.faults, title, base_title),
        _sentences(check.notes, title, base_title),
    )


class _Check:
    """One run of check_fit. faults, notes: predicate of a sentence -> the names it is true of."""

    def __init__(
        self,
        config: AdapterConfig,
        tensors: Mapping[str, TensorShape],
        base: Mapping[str, TensorShape] | None,
    ) -> None:
        self.faults: dict[str, list[str]] = {}
        self.notes: dict[str, list[str]] = {}
        self._config = config
        self._saved = set(config.modules_to_save)
        self._tensors = tensors
        self._parts = {name: part_of(name) for name in sorted(tensors)}
        self._base = base
        self._targets = Targets(base) if base is not None else None

    def modules(self) -> tuple[Module, ...]:
        pairs = self._pairs()
        config = self._config
        ranks = values_of(config.rank_pattern, config.r, pairs, "rank_pattern")
        alphas = values_of(config.alpha_pattern, config.lora_alpha, pairs, "alpha_pattern")
        found = []
        for name, part in pairs.items():
            factors = self._factors(part)
            rank = self._rank(name, factors, ranks[name])
            if rank is not None:
                is_embedding = part.kind == Kind.EMBEDDING_A
                scale = alphas[name] / (math.sqrt(rank) if config.use_rslora else rank)
                target = self._target(name, factors, is_embedding)
                found.append(Module(name, target, rank, alphas[name], scale, is_embedding))
        return tuple(found)

    def _pairs(self) -> dict[str, Part]:
        pairs = {}
        for part in self._parts.values():
            if part.kind not in OTHER_FACTOR:
                continue
            other = OTHER_FACTOR[part.kind]
            if part.stem + ENDING_OF[other] not in self._tensors:
                self._add(self.faults, f"has {part.kind} without {other} for", part.module)
            elif part.kind in (Kind.A, Kind.EMBEDDING_A):
                if part.module in pairs:
                    self._add(self.faults, "has more than one A for", part.module)
                pairs[part.module] = part
        return pairs

    def _factors(self, part: Part) -> tuple[TensorShape, TensorShape]:
        down, up = (part.stem + ENDING_OF[kind] for kind in (part.kind, OTHER_FACTOR[part.kind]))
        return self._tensors[down], self._tensors[up]

    def _rank(
        self, module: str, factors: tuple[TensorShape, TensorShape], expected: int
    ) -> int | None:
        rank = rank_of(*factors)
        if rank is None:
            shapes = _dims(*factors)
            self._add(self.faults, f"has A and B that do not fit together ({shapes}) for", module)
            return None
        if self._config.target_parameters and rank % expected == 0:
            return expected  # the factors of all experts lie side by side
        if rank != expected:
            rule = "rank_pattern" if self._config.rank_pattern else "r"
            self._add(self.faults, f"has rank {rank}, where {rule} says {expected}, for", module)
        return rank

    def _target(
        self, module: str, factors: tuple[TensorShape, TensorShape], is_embedding: bool
    ) -> str | None:
        if self._targets is None or self._base is None:
            return None
        target = self._targets.find(f"{module}.weight")
        if target is None:
            is_free = self._config.target_parameters or self._config.layer_replication is not None
            if is_free or self._targets.is_ambiguous(f"{module}.weight"):
                self._add(self.notes, "was not compared with {base} for", module)
            else:
                self._add(self.faults, "changes modules that {base} does not have:", module)
            return None
        weight = self._base[target]
        if not weight.is_plain_float or self._config.use_qalora or self._config.variants:
            self._add(self.notes, "has shapes that were not compared with {base} for", module)
            return target
        if self._fits(factors, weight, is_embedding):
            return target
        copy = self._tensors.get(f"{PREFIX}{module}.base_layer.weight")
        if copy is not None and self._fits(factors, copy, is_embedding):
            predicate = "was trained after {base} was resized, which must be done again, for"
            self._add(self.notes, predicate, module)
        else:
            self._add(
                self.faults,
                f"has A and B {_dims(*factors)} that do not fit {_dims(weight)} in {{base}} for",
                module,
            )
        return target

    def _fits(
        self, factors: tuple[TensorShape, TensorShape], weight: TensorShape, is_embedding: bool
    ) -> bool:
        if is_embedding:
            return fits_vocabulary(factors, weight)
        return fits_base(self._config, factors, weight)

    def extras(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, list[str]] = {}
        for name, part in self._parts.items():
            if part.kind == Kind.WHOLE:
                is_bias = name.endswith(".bias") and not self._is_saved(part.module)
                found.setdefault(BIASES if is_bias else HEADS, []).append(name)
            elif part.kind in (Kind.EMBEDDING_A, Kind.EMBEDDING_B):
                found.setdefault(EMBEDDINGS, []).append(name)
            elif part.kind not in (Kind.A, Kind.B):
                found.setdefault(part.kind.value, []).append(name)
        return {kind: tuple(names) for kind, names in found.items()}

    def _is_saved(self, tensor: str) -> bool:
        module = tensor.rpartition(".")[0]
        return not self._saved.isdisjoint([module, *endings(module)])

    def find_faults_of_extras(self) -> None:
        kinds = {kind: set[str]() for kind in Kind}
        for part in self._parts.values():
            kinds[part.kind].add(part.module)
        if self._config.use_dora:
            for module in sorted((kinds[Kind.A] | kinds[Kind.EMBEDDING_A]) - kinds[Kind.MAGNITUDE]):
                self._add(self.faults, "says use_dora and has no magnitudes for", module)
        elif kinds[Kind.MAGNITUDE]:
            for module in sorted(kinds[Kind.MAGNITUDE]):
                self._add(self.faults, "has magnitudes of DoRA without use_dora for", module)
        for tensor in sorted(kinds[Kind.WHOLE]):
            target = self._targets.find(tensor) if self._targets else None
            if target is None or self._base is None:
                continue
            own = self._tensors.get(tensor) or self._tensors[PREFIX + tensor]
            if own.shape != self._base[target].shape:
                self._add(
                    self.notes,
                    f"has a tensor of shape {_dims(own)} in place of {_dims(self._base[target])} in"
                    " {base}, which must be resized first:",
                    tensor,
                )

    def find_missing(self, changed: set[str]) -> None:
        """Faults for what the configuration names, and the base has, and the weights lack."""
        base = self._base or {}
        for tensor in missing_targets(self._config, base, changed):
            self._add(self.faults, "has no weights, though target_modules names them, for", tensor)
        wholes = [part.module for part in self._parts.values() if part.kind == Kind.WHOLE]
        expected = self._saved & _modules_with_weights(base)
        for module in sorted(expected - _modules_with_weights(wholes)):
            self._add(self.faults, "has no weights, though modules_to_save names them, for", module)

    @staticmethod
    def _add(sentences: dict[str, list[str]], predicate: str, name: str) -> None:
        sentences.setdefault(predicate, []).append(name)


def _modules_with_weights(tensors: Collection[str]) -> set[str]:
    """The names, and ends of names, of the modules whose weight is among the tensors."""
    modules = [name.removesuffix(".weight") for name in tensors if name.endswith(".weight")]
    return {ending for module in modules for ending in (module, *endings(module))}


def _dims(*tensors: TensorShape) -> str:
    shown = [
        str(list(tensor.shape)) if len(tensor.shape) <= 8 else f"of {len(tensor.shape)} dimensions"
        for tensor in tensors
    ]
    return " and ".join(shown)


def _sentences(found: Mapping[str, list[str]], title: str, base_title: str) -> tuple[str, ...]:
    sentences = []
    for predicate, names in list(found.items())[:_SENTENCES_SHOWN]:
        shown = ", ".join(map(_printable, names[:_NAMES_SHOWN]))
        more = f" and {len(names) - _NAMES_SHOWN:,} more" if len(names) > _NAMES_SHOWN else ""
        sentence = f"{title} {predicate.replace('{base}', base_title)} {shown}{more}"
        sentences.append(sentence.rstrip())
    if len(found) > _SENTENCES_SHOWN:
        sentences.append(f"{title} has {len(found) - _SENTENCES_SHOWN:,} more such faults")
    return tuple(sentences)


def _printable(name: str) -> str:
    return name if name.isprintable() and len(name) <= 200 else quoted(name)
