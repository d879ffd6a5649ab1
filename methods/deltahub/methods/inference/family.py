"""A base and its fine-tunes in memory: the base once, and each fine-tune as differences."""

import mmap
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from math import prod
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from deltahub.codecs.cuda.arrays import Array
from deltahub.codecs.cuda.weights import GpuDelta, GpuWeight
from deltahub.codecs.dtypes import DType
from deltahub.codecs.exports.coding import (
    SLICE_ELEMENTS,
    WORDS,
    encode_delta,
    lossless,
)
from deltahub.codecs.exports.file import FILE_NAME, CompressedWeight
from deltahub.codecs.exports.parts import Part
from deltahub.codecs.files.safetensors import header_length, parse_header
from deltahub.methods.adapters.lora import CONFIG_FILE
from deltahub.methods.errors import CannotExport
from deltahub.methods.inference.building import (
    empty_model,
    owner_of,
    places_of,
    plain_tensor,
    put,
    share_ties,
    ties_of,
)
from deltahub.methods.inference.cards import Card, Resident, card_for, device_of
from deltahub.methods.inference.modules import Compressible
from deltahub.methods.inference.sources import TORCH_DTYPES, Source, compressed_words, memory_of
from deltahub.methods.inference.workspace import Workspace
from deltahub.methods.kinds.export_neuzip import ExportNeuzipArguments
from deltahub.methods.kinds.weights.choice import choose

BASE: Final = "base"


class DeltaSource(Source):
    """A weight of the base, and what each fine-tune changed of it. Nothing is lost."""

    def __init__(self, weight: CompressedWeight, threads: int = 1) -> None:
        super().__init__(weight, None, threads)
        self.deltas: dict[str, tuple[Part | None, ...]] = {}
        self._name = BASE

    @property
    def state(self) -> str:
        return self._name

    @property
    def size_bytes(self) -> int:
        deltas = (part for each in self.deltas.values() for part in each if part is not None)
        return super().size_bytes + sum(part.size_bytes for part in deltas)

    def add(self, name: str, words: memoryview) -> None:
        """Keep a fine-tune's elements as differences."""
        size = self.weight.coding.dtype.itemsize
        parts = []
        for i, base in enumerate(self._bases()):
            begin = i * SLICE_ELEMENTS * size
            piece = words[begin : begin + len(base)]
            parts.append(encode_delta(self.weight.coding.dtype, piece, base, self.threads))
        self.deltas[name] = tuple(parts)

    def upload(self, card: Card) -> Resident:
        return _ResidentFamily(self, card)

    def use(self, name: str) -> None:
        """Decode the fine-tune of this name from now on, or BASE."""
        self._name = name

    def decode_into(self, out: torch.Tensor) -> None:
        memory, step = memory_of(out), SLICE_ELEMENTS * self.weight.coding.dtype.itemsize
        for i in range(len(self.weight.slices)):
            self._fill(i, memory[i * step : (i + 1) * step])

    def decode_rows(self, rows: torch.Tensor) -> torch.Tensor:
        if self._name not in self.deltas:
            return super().decode_rows(rows)
        width = prod(self.shape[1:]) * self.weight.coding.dtype.itemsize
        step = SLICE_ELEMENTS * self.weight.coding.dtype.itemsize
        out = torch.empty((len(rows), *self.shape[1:]), dtype=self.dtype)
        memory, known, piece = memory_of(out), -1, memoryview(b"")
        for at, row in enumerate(rows.tolist()):
            begin, end = row * width, (row + 1) * width
            while begin < end:
                i = begin // step
                if i != known:
                    piece = memoryview(bytearray(min(step, self.plain_bytes - i * step)))
                    self._fill(i, piece)
                    known = i
                stop = min(end, (i + 1) * step)
                room = at * width + begin - row * width
                memory[room : room + stop - begin] = piece[begin - i * step : stop - i * step]
                begin = stop
        return out

    def _fill(self, i: int, target: memoryview) -> None:
        """Decode slice i."""
        deltas = self.deltas.get(self._name)
        part = None if deltas is None else deltas[i]
        base = target
        if part is not None and part.view.header.base is not None:
            base = memoryview(bytearray(len(target)))
        if part is None or base is not target:
            count = self.weight.slices[i][WORDS].view.header.count
            self.weight.decode_range(i * SLICE_ELEMENTS, count, base, None, self.threads)
        if part is not None:
            part.decode_into(target, self.threads, None if base is target else base)

    def _bases(self) -> Iterator[memoryview]:
        size = self.weight.coding.dtype.itemsize
        for i, parts in enumerate(self.weight.slices):
            count = parts[WORDS].view.header.count
            base = memoryview(bytearray(count * size))
            self.weight.decode_range(i * SLICE_ELEMENTS, count, base, None, self.threads)
            yield base


class _ResidentFamily:
    """A weight of the base on a GPU, and what each fine-tune changed of it."""

    def __init__(self, source: DeltaSource, card: Card) -> None:
        self._source = source
        self._base = GpuWeight(source.weight, None, card.decoder)
        self._deltas = {
            name: GpuDelta(source.weight, parts, card.decoder)
            for name, parts in source.deltas.items()
        }

    @property
    def size_bytes(self) -> int:
        return self._base.size_bytes + sum(each.size_bytes for each in self._deltas.values())

    def decode_into(self, out: Array, stream: Any = None, *, verify: bool = True) -> None:
        self._base.decode_into(out, stream, verify=verify)
        delta = self._deltas.get(self._source.state)
        if delta is not None:
            delta.apply_to(out, stream, verify=verify)

    def check(self, stream: Any = None) -> None:
        self._base.check(stream)
        for each in self._deltas.values():
            each.check(stream)


class Family:
    """A base and fine-tunes of it, one of which runs at a time.

    model: a model of transformers in evaluation mode. Its matrices are decoded, layer by layer,
    from the base and the differences of the fine-tune that is used; other tensors are kept plain
    for each. Switch between passes, not within one.
    """

    def __init__(
        self,
        base: Path,
        fine_tunes: Mapping[str, Path],
        *,
        threads: int = 1,
        prefetch: bool = True,
        device: torch.device | str = "cpu",
    ) -> None:
        """Folders with config.json and safetensors files. CannotExport if they do not fit, or are
        exports or adapters; InvalidInput if the device is none; NoGpu if it is a GPU that this
        machine lacks.
        """
        place = device_of(device)
        card_for(place)  # which refuses before anything is read
        if BASE in fine_tunes:
            raise CannotExport(f"{BASE!r} is the base's own name: call that fine-tune otherwise")
        self._used = BASE
        self._sources: dict[str, DeltaSource] = {}
        self._plain: dict[str, dict[str, torch.Tensor]] = {BASE: {}}
        tensors = _tensors_of(BASE, base)
        shapes = {name: each[:2] for name, each in tensors.items()}
        asked = ExportNeuzipArguments(model="a/b", name="a/c", lossless=True)
        coded = choose(shapes, asked, base.name).coded
        self.model = empty_model(base, TORCH_DTYPES[next(iter(coded.values())).dtype])
        self._places = places_of(self.model, {name: shape for name, (_, shape) in shapes.items()})
        ties = ties_of(self.model, self._places.values())
        self._workspace = workspace = Workspace(prefetch)
        for name, (dtype, shape, data) in tensors.items():
            owner, last = owner_of(self.model, self._places[name])
            if name in coded and last == "weight" and Compressible.has(owner):
                weight = compressed_words(name, shape, data, lossless(DType[dtype]), threads)
                self._sources[name] = DeltaSource(weight, threads)
                Compressible.compress(owner, self._sources[name], workspace)
            else:
                self._plain[BASE][name] = plain_tensor(name, dtype, shape, data)
                put(owner, last, self._plain[BASE][name].clone())
        share_ties(self.model, ties)
        self.model.register_forward_hook(workspace.check_pass)
        for name, folder in fine_tunes.items():
            self._add(name, folder, shapes)
        self.model.eval()
        self.model.to(place)

    @property
    def names(self) -> tuple[str, ...]:
        """The base's name, and those of the fine-tunes."""
        return tuple(self._plain)

    @property
    def plain_bytes(self) -> int:
        """Bytes of the tensors that are not compressed, which are kept for each model beside the
        one that runs.
        """
        kept = (each for told in self._plain.values() for each in told.values())
        return sum(each.numel() * each.element_size() for each in kept)

    @property
    def used(self) -> str:
        return self._used

    def use(self, name: str) -> nn.Module:
        """Let the model be the fine-tune of this name from the next pass on; the model."""
        if name not in self._plain:
            raise CannotExport(f"there is no {name} in memory: {', '.join(self._plain)}")
        with ExitStack() as settled:
            for workspace in [*self._workspace.places.values()]:
                settled.enter_context(workspace.settled())
            for source in self._sources.values():
                source.use(name)
        for tensor, value in (self._plain[BASE] | self._plain[name]).items():
            owner, last = owner_of(self.model, self._places[tensor])
            with torch.no_grad():
                getattr(owner, last).copy_(value)
        self._used = name
        return self.model

    def _add(
        self, name: str, folder: Path, shapes: Mapping[str, tuple[str, tuple[int, ...]]]
    ) -> None:
        tensors = _tensors_of(name, folder)
        found = {each: told[:2] for each, told in tensors.items()}
        if found != shapes:
            other = sorted(
                each for each in found.keys() | shapes.keys() if found.get(each) != shapes.get(each)
            )
            raise CannotExport(
                f"{name} has another {other[0]} than the base: a fine-tune in memory has the same"
                " tensors, dtypes and shapes"
            )
        plain = {}
        for each, (dtype, shape, data) in tensors.items():
            if each in self._sources:
                self._sources[each].add(name, data)
            else:
                value = plain_tensor(each, dtype, shape, data)
                # By bytes, because -0.0 is not 0.0, and a NaN is itself.
                if memory_of(value) != memory_of(self._plain[BASE][each]):
                    plain[each] = value
        self._plain[name] = plain


_Stored = tuple[str, tuple[int, ...], memoryview]


def _tensors_of(name: str, folder: Path) -> dict[str, _Stored]:
    """name -> (dtype, shape, bytes) of all safetensors files in a folder, mapped into memory."""
    if (folder / FILE_NAME).is_file():
        raise CannotExport(
            f"{name} is an export ({folder}), and a family is made of plain models: name the model"
            " that it was made from"
        )
    if (folder / CONFIG_FILE).is_file():
        raise CannotExport(
            f"{name} is an adapter ({folder}), and a family is made of full models: merge it with"
            " `deltahub adapter merge`, and name its branch, such as lab/adapter@merged"
        )
    found: dict[str, _Stored] = {}
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise CannotExport(
            f"{name} has no safetensors files ({folder}): a family is made of full models whose"
            " weights are safetensors"
        )
    for path in paths:
        with path.open("rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        header = parse_header(data[: header_length(data[:8], len(data))], len(data))
        for info in header.tensors:
            found[info.name] = info.dtype, info.shape, data[info.start : info.end]
    return found
