"""Modules of torch whose weight stays compressed, and is decoded when it is used."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from deltahub.codecs.exports.integers import IntegerCoding
from deltahub.methods.errors import CannotExport
from deltahub.methods.inference.card_sources import source_on
from deltahub.methods.inference.card_workspace import workspace_on
from deltahub.methods.inference.cards import Card, card_for, check_integers, no_gpu
from deltahub.methods.inference.sources import Source
from deltahub.methods.inference.workspace import Workspace

# An embedding decodes the rows that it needs, up to this many; more than that, all of them.
_MOST_ROWS = 256


class CompressedModule(nn.Module):
    """A module without the parameter `weight`: it has a source, which is decoded for each use.

    Its class is also that of the module that it was, so that programs which look for an
    `nn.Linear` find one. Gradients reach its inputs; the weight itself has none.
    """

    _source: Source
    _workspace: Workspace
    _dtype: torch.dtype  # of the weight that the module shows

    @property
    def weight(self) -> torch.Tensor:
        """The weight as a plain tensor, which is decoded for each reader: do not change it."""
        held = self._workspace.held(self._source, self._dtype_now())
        return DecodedWeight(self._source.decode().to(self._dtype)) if held is None else held

    @property
    def source(self) -> Source:
        """The compressed weight."""
        return self._source

    @property
    def workspace(self) -> Workspace:
        """The buffers that the weight is decoded into."""
        return self._workspace

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        source, workspace = self._source, self._workspace

        # What autograd keeps of the weight is its name: backward decodes it once more. The
        # operations, and so all numbers, are those of the plain module.
        def pack(tensor: torch.Tensor) -> Any:
            if not workspace.is_held(source, tensor):
                return tensor
            place = tensor.size(), tensor.stride(), int(tensor.storage_offset())
            return _Kept(tensor.dtype, place)

        def unpack(kept: Any) -> torch.Tensor:
            if not isinstance(kept, _Kept):
                tensor: torch.Tensor = kept
                return tensor
            return source.decode().to(kept.dtype).as_strided(*kept.place)

        with workspace.weight_of(source), saved_tensors_hooks(pack, unpack):
            return super().forward(*args, **kwargs)

    def _dtype_now(self) -> torch.dtype:
        """The dtype in which the module computes. Autocast would cast the weight by itself, but
        then autograd would keep what it made.
        """
        device = self._source.device.type
        casts = torch.is_autocast_enabled(device) and not isinstance(self, nn.Embedding)
        return torch.get_autocast_dtype(device) if casts else self._dtype

    def place(self, card: Card | None) -> None:
        """Let the compressed bytes lie on a GPU, or on the CPU for None."""
        self._source = source_on(self._source, card)
        self._workspace = workspace_on(self._workspace, card)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        try:
            probe = fn(torch.empty(0, dtype=self._dtype, device=self._source.device))
        except (AssertionError, RuntimeError) as exc:  # each build of torch raises another
            if torch.cuda.is_available() or not re.search("cuda|nvidia", str(exc), re.IGNORECASE):
                raise
            check_integers([torch.device("cuda")], self._workspace.integers)
            raise no_gpu() from exc
        if probe.device != self._source.device and probe.device.type != "meta":
            check_integers([probe.device], self._workspace.integers)
            self.place(card_for(probe.device))
        made = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._dtype = probe.dtype
        return made

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight"] = self._source.shared().to(self._dtype)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        if f"{prefix}weight" in state_dict:
            errors: list[str] = args[-1]
            errors.append(
                f"{prefix}weight is compressed and cannot be overwritten: load the state into the"
                " plain model, and compress that"
            )
            return
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        shown = f"{self._source.size_bytes} of {self._source.plain_bytes} bytes"
        own = super().extra_repr() or "x".join(map(str, self._source.shape))
        return f"{own}, compressed={shown}"

    def __repr__(self) -> str:
        # Conv1D has a text of its own, without extra_repr.
        return nn.Module.__repr__(self)


@dataclass(frozen=True)
class _Kept:
    """What backward needs to make a saved view of a weight again. place: size, stride, offset."""

    dtype: torch.dtype
    place: tuple[torch.Size, tuple[int, ...], int]


class DecodedWeight(nn.Parameter):
    """A decoded weight that refuses to be changed in the way that PEFT changes a base."""

    def __new__(cls, tensor: torch.Tensor) -> "DecodedWeight":
        return super().__new__(cls, tensor, requires_grad=False)

    @property
    def data(self) -> torch.Tensor:
        return super().data

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        raise CannotExport(
            "a compressed weight cannot be changed: adapters that change their base, such as PiSSA,"
            " need the plain model"
        )


class CompressedEmbedding(CompressedModule, nn.Embedding):  # type: ignore[override]
    """Decodes the rows that it is asked for, where these are few."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        if not self._source.decodes_rows:
            decoded: torch.Tensor = super().forward(ids)
            return decoded
        rows, places = torch.unique(ids, return_inverse=True)
        if len(rows) > _MOST_ROWS or self.max_norm is not None or not len(rows):
            found: torch.Tensor = super().forward(ids)
            return found
        if int(rows[0]) < 0 or int(rows[-1]) >= self.num_embeddings:
            raise IndexError(f"an embedding of {self.num_embeddings} rows has no row {rows[-1]}")
        return self._source.decode_rows(rows).to(self._dtype)[places]


class Compressible:
    """The kinds of modules whose weight can stay compressed, and their compressed classes."""

    _made: ClassVar[dict[type[nn.Module], type[CompressedModule]]] = {
        nn.Embedding: CompressedEmbedding
    }

    @classmethod
    def has(cls, module: nn.Module) -> bool:
        """Whether the module computes with one matrix named weight, which it does not change."""
        if isinstance(module, CompressedModule):
            return False
        return isinstance(module, (nn.Linear, nn.Embedding)) or type(module).__name__ == "Conv1D"

    @classmethod
    def compress(cls, module: nn.Module, source: Source, workspace: Workspace) -> None:
        """Make the module a CompressedModule in its place."""
        shown = module._parameters["weight"]
        assert shown is not None, "has() was asked"
        del module._parameters["weight"]
        kind = type(module)
        if kind not in cls._made:
            cls._made[kind] = type(f"Compressed{kind.__name__}", (CompressedModule, kind), {})
        module.__class__ = cls._made[kind]
        assert isinstance(module, CompressedModule)
        module._source, module._workspace, module._dtype = source, workspace, shown.dtype
        if isinstance(source.weight.coding, IntegerCoding):
            workspace.integers[source.name] = source.weight.coding
        if shown.device.type != "meta":
            module.place(card_for(shown.device))
