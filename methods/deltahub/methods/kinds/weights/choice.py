"""Which weights an export compresses, and how."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod
from typing import Final

from deltahub.codecs.dtypes import DType
from deltahub.codecs.exports.coding import (
    MANTISSA_BITS,
    ROUNDED,
    AnyCoding,
    Coding,
    coding,
    lossless,
)
from deltahub.codecs.exports.file import weight_of_part
from deltahub.codecs.exports.integers import MAX_COLUMNS, IntegerCoding
from deltahub.codecs.files.safetensors import DEFAULT_LIMITS
from deltahub.codecs.frames.encode import shape_to_rows
from deltahub.methods.errors import CannotExport
from deltahub.methods.kinds.export_neuzip import MOST_CHOSEN, ExportNeuzipArguments
from deltahub.methods.kinds.kind import Shapes

# Whose errors reach every token: embeddings, heads, and the gates that choose experts.
KEPT: Final = (
    "*embed*", "*wte.*", "*wpe.*", "shared.*", "*.shared.weight", "*lm_head.*", "*score.*",
    "*classifier.*", "*router.*", "*.gate.*",
)  # fmt: skip
# Mantissa bits that a budget chooses from.
TRIED_BITS: Final = tuple(range(MOST_CHOSEN + 1))
# Smaller weights take more for their tables than they save.
MIN_ELEMENTS: Final = 4096


@dataclass(frozen=True)
class Choice:
    """coded: name -> coding of the weights that are compressed, in the model's order. open: names
    of those whose bits a budget will choose. plain: names of all other tensors.
    """

    coded: dict[str, AnyCoding]
    open: tuple[str, ...]
    plain: tuple[str, ...]

    @property
    def integers(self) -> tuple[str, ...]:
        """Names of the weights that entquant rounds."""
        return tuple(name for name, how in self.coded.items() if isinstance(how, IntegerCoding))


def refuse_other_models(title: str, *, is_adapter: bool, is_export: bool) -> None:
    """CannotExport for an adapter and for an export."""
    if is_adapter:
        raise CannotExport(
            f"{title} is an adapter: merge it with `deltahub adapter merge`, and export that"
        )
    if is_export:
        raise CannotExport(f"{title} is an export: name the model that it was made from")


def check_shapes(shapes: Shapes, arguments: ExportNeuzipArguments, title: str) -> Choice:
    """As choose. CannotExport, too, for more tensors than a file may have, and for a budget that
    no weights of these shapes meet.
    """
    choice = choose(shapes, arguments, title)
    check_number(choice, arguments, title)
    if arguments.budget is not None:
        # The sign of each element and the scales are stored as they are.
        least = 1 + (8 / arguments.block if arguments.block else 0)
        if arguments.budget < least:
            raise CannotExport(
                f"the budget of {arguments.budget:g} bits an element is too small: no weights take"
                f" fewer than {least:g}; --dry-run says what these take at least"
            )
    return choice


def choose(shapes: Shapes, arguments: ExportNeuzipArguments, title: str) -> Choice:
    """How each tensor is stored. title: of the model, for CannotExport if none can be compressed,
    none is left for a budget, `keep` names none, one is named like a part of another, or `also` or
    `block` change nothing.
    """
    if not shapes:
        raise CannotExport(f"{title} has no safetensors file: push its weights as safetensors")
    unknown = [
        each
        for each in arguments.keep or ()
        if each != "none" and not any(fnmatchcase(name, each) for name in shapes)
    ]
    if unknown:
        raise CannotExport(
            f"keep: {title} has no tensor {unknown[0]}; * stands for any letters, such as in"
            " *.down_proj.weight"
        )
    coded: dict[str, AnyCoding] = {}
    plain, undecided = [], []
    for name, (dtype_name, shape) in shapes.items():
        dtype = DType.__members__.get(dtype_name)
        if dtype not in MANTISSA_BITS or len(shape) < 2 or prod(shape) < MIN_ELEMENTS:
            plain.append(name)
            continue
        coded[name] = _coding(name, dtype, shape, arguments)
        if arguments.bits == "auto" and dtype in ROUNDED and not _is_kept(name, arguments.keep):
            undecided.append(name)
    if not coded:
        raise CannotExport(
            f"{title} has no matrix of floats with {MIN_ELEMENTS} elements or more: to compress it"
            " would save nothing"
        )
    if arguments.bits == "auto" and not undecided:
        raise CannotExport(
            f"{title} has no weight that may be rounded, so that there is nothing to choose:"
            " leave bits and budget out, or keep fewer weights"
        )
    for name in shapes:
        if weight_of_part(name) in coded:
            raise CannotExport(
                f"{title} has a tensor {name}, which is named like a part of the compressed weight"
                f" {weight_of_part(name)}: rename it"
            )
    found = Choice(coded, tuple(undecided), tuple(plain))
    _refuse_without_effect(found, arguments, title)
    if arguments.method == "entquant" and not found.integers:
        raise CannotExport(
            f"{title} has no weight that may be rounded: leave method out, or keep fewer weights"
        )
    return found


def _refuse_without_effect(choice: Choice, arguments: ExportNeuzipArguments, title: str) -> None:
    """CannotExport if `also` or `block` say something that holds for no weight."""
    if choice.open:
        return  # the budget has yet to choose
    if arguments.block and not any(how.block for how in choice.coded.values()):
        raise CannotExport(
            f"block {arguments.block}: no weight of {title} is rounded at {arguments.bits} mantissa"
            " bits, so that none is divided: give fewer bits, or leave block out"
        )
    for level in arguments.also or ():
        if not any(level in how.levels[:-1] for how in choice.coded.values()):
            raise CannotExport(
                f"also {level}: no weight of {title} that may be read at fewer bits has more than"
                f" {level} mantissa bits: leave it out"
            )


def check_number(choice: Choice, arguments: ExportNeuzipArguments, title: str) -> None:
    """CannotExport if the export may have more tensors than readers take of one file."""
    most = DEFAULT_LIMITS.max_tensors
    number, undecided = len(choice.plain), frozenset(choice.open)
    for name, how in choice.coded.items():
        hows = [how]
        if name in undecided:
            hows += [coding_with(how.dtype, bits, arguments) for bits in TRIED_BITS]
        number += max(len(each.parts) for each in hows)
    if number <= most:
        return
    way_out = "export a smaller model"
    if arguments.also:
        way_out = "ask for fewer also"
    elif arguments.block:
        way_out = "leave block out"
    raise CannotExport(
        f"the export of {title} may have {number:,} tensors, each part of a weight being one, and"
        f" readers take at most {most:,} of a file: {way_out}"
    )


def refuse_small_budget(budget: float, least: float) -> None:
    """CannotExport if the weights take more bits an element than the budget, without a mantissa."""
    if budget < least:
        shown = math.ceil(100 * least) / 100
        raise CannotExport(
            f"the budget of {budget:g} bits an element is too small: without any mantissa bit the"
            f" weights take {shown:.2f}; give at least that"
        )


def coding_with(dtype: DType, bits: int, arguments: ExportNeuzipArguments) -> Coding:
    """How a weight is rounded to `bits` mantissa bits."""
    return coding(dtype, bits, arguments.block, arguments.also or ())


def _coding(
    name: str, dtype: DType, shape: tuple[int, ...], arguments: ExportNeuzipArguments
) -> AnyCoding:
    is_rounded = dtype in ROUNDED and not _is_kept(name, arguments.keep)
    if arguments.method == "entquant":
        _, columns = shape_to_rows(shape)
        is_short = columns <= MAX_COLUMNS
        return IntegerCoding(dtype, columns) if is_rounded and is_short else lossless(dtype)
    if arguments.lossless or not is_rounded:
        return lossless(dtype, arguments.also or () if is_rounded else ())
    # A budget chooses later, unless it finds elements that cannot be rounded at any bits.
    bits = 0 if arguments.bits == "auto" else int(arguments.bits)
    return coding_with(dtype, bits, arguments)


def _is_kept(name: str, keep: Sequence[str] | None) -> bool:
    return any(fnmatchcase(name, each) for each in (KEPT if keep is None else keep))
