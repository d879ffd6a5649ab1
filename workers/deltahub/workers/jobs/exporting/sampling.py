"""What an export will take, by a sample of its weights, before it starts."""

import time
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np

from deltahub.codecs._native import count_infinite
from deltahub.codecs.dtypes import DType
from deltahub.codecs.exports.integers import IntegerCoding
from deltahub.codecs.frames.encode import shape_to_rows
from deltahub.codecs.words import WORD_KINDS
from deltahub.methods.exporting.entquant import (
    PENALTIES,
    Encoding,
    Rounding,
    coding_of,
    encode_words,
    floats_of,
    sample_rows,
)
from deltahub.methods.exporting.loss import Loss
from deltahub.methods.kinds.weights.choice import TRIED_BITS, coding_with
from deltahub.registry.results.inputs import InputTensor
from deltahub.workers.compute.context import ComputeContext
from deltahub.workers.jobs.exporting.inputs import ExportInputs

# About so many weights, evenly spread, say how long all of them take.
_TIMED: Final = 32
# The sample's coding is timed. The job also reads, stores, reads back and hashes.
_OTHER_WORK: Final = 1.5
# A job of a small model takes this for its process and its steps.
_LEAST_S: Final = 3.0


@dataclass(frozen=True)
class Sampled:
    """seconds: that the job takes without a perplexity, roughly. span: the fewest and the most
    bits that an element of the weights that a budget is for may take; None if there are none.
    """

    seconds: float
    span: tuple[float, float] | None


def sample_weights(context: ComputeContext, inputs: ExportInputs) -> Sampled:
    """Code a sample of the weights as the export will."""
    names = list(inputs.choice.coded)
    undecided = frozenset(inputs.choice.open)
    timed = names[:: max(1, len(names) // _TIMED)]
    seconds, timed_bytes = 0.0, 0
    counts, ranges = [], []
    for number, name in enumerate(names):
        tensor, is_timed = inputs.model.tensors[name], name in timed
        if not is_timed and name not in undecided:
            continue
        words = read_sample(context, tensor)
        hows = _encodings(inputs, name, words)
        sizes, begun = [], time.monotonic()
        if count_infinite(WORD_KINDS[DType[tensor.ref.dtype]], words) == 0:
            sizes = [_coded_bytes(how, words, context.threads) for how in hows]
        spent = (time.monotonic() - begun) / len(hows)
        if is_timed:
            timed_bytes += tensor.ref.size
            seconds += _times(inputs, name, tensor.ref.size / len(words)) * spent
        if name in undecided and sizes:
            counts.append(prod(tensor.ref.shape))
            n_elements = len(words) // DType[tensor.ref.dtype].itemsize
            ranges.append([8 * size / n_elements for size in sizes])
        context.report("look at the weights", number + 1, len(names))
    whole = sum(inputs.model.tensors[name].ref.size for name in names)
    span = None
    if counts:
        least, most = np.average(np.array(ranges), axis=0, weights=np.array(counts, np.float64))
        span = (float(least), float(most))
    return Sampled(_LEAST_S + _OTHER_WORK * seconds * whole / timed_bytes, span)


def read_sample(context: ComputeContext, tensor: InputTensor) -> memoryview:
    """Some whole rows of a matrix, evenly spread."""
    rows, columns = shape_to_rows(tensor.ref.shape)
    row_bytes = tensor.ref.size // rows
    runs = sample_rows(rows, columns)
    words, at = memoryview(bytearray(sum(count for _, count in runs) * row_bytes)), 0
    for first, count in runs:
        room = words[at : at + count * row_bytes]
        context.reader.read_tensor_into(tensor.row, first * row_bytes, room)
        at += len(room)
    return words


def _encodings(inputs: ExportInputs, name: str, words: memoryview) -> list[Encoding]:
    """How a sample is encoded; for a budget with the fewest bits, and with the most."""
    how, dtype = inputs.choice.coded[name], DType[inputs.model.tensors[name].ref.dtype]
    if isinstance(how, IntegerCoding):
        mean = float(np.abs(floats_of(how, words)).mean(dtype=np.float64)) or 1.0
        return [Rounding(how, mean, PENALTIES[len(PENALTIES) // 2])]
    if name in inputs.choice.open:
        ends = (TRIED_BITS[0], TRIED_BITS[-1])
        return [coding_with(dtype, bits, inputs.arguments) for bits in ends]
    return [how]


def _coded_bytes(how: Encoding, words: memoryview, threads: int) -> int:
    coding = coding_of(how)
    some = words[: coding.slice_elements * coding.dtype.itemsize]
    frames, decoded = encode_words(how, some, threads)
    Loss().add(coding, some, decoded)
    # A row longer than a slice stands for itself by its beginning.
    return round(sum(map(len, frames.values())) * len(words) / len(some))


def _times(inputs: ExportInputs, name: str, share: float) -> float:
    """How many times the work on the sample the whole weight takes. share: bytes of it over those
    of the sample.
    """
    if name in inputs.choice.open:
        return share * (len(TRIED_BITS) + 1)
    if isinstance(inputs.choice.coded[name], IntegerCoding):
        return share + len(PENALTIES)
    return share
