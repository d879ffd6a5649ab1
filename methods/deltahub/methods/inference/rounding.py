"""How the weights of a module in memory are encoded, where measures of them all decide."""

from collections.abc import Iterator, Mapping

import torch

from deltahub.codecs.exports.coding import SLICE_ELEMENTS, AnyCoding, Coding
from deltahub.codecs.exports.integers import IntegerCoding
from deltahub.codecs.frames.encode import shape_to_rows
from deltahub.methods.exporting.budget import Trial, choose_bits
from deltahub.methods.exporting.entquant import (
    Encoding,
    Rounding,
    Sample,
    choose_penalty,
    measure_sample,
    sample_rows,
)
from deltahub.methods.exporting.loss import measure_trials
from deltahub.methods.inference.sources import CODED_DTYPES, memory_of
from deltahub.methods.kinds.export_neuzip import ExportNeuzipArguments
from deltahub.methods.kinds.weights.choice import TRIED_BITS, Choice, coding_with


def roundings_of(
    choice: Choice, weights: Mapping[str, torch.Tensor], bits: float
) -> dict[str, Encoding]:
    """name -> how it is encoded, in the order of the choice. bits: that an element of the weights
    that become integers takes. Weights that are the same tensor count once. CannotExport if they
    cannot take so many bits.
    """
    samples: dict[int, Sample] = {}
    for name, how in choice.coded.items():
        weight = weights[name]
        if isinstance(how, IntegerCoding) and id(weight) not in samples:
            samples[id(weight)] = measure_sample(how, _sample(weight), weight.numel())
    penalty = choose_penalty(list(samples.values()), bits) if samples else 0.0
    found: dict[str, Encoding] = {}
    for name, how in choice.coded.items():
        if isinstance(how, IntegerCoding):
            found[name] = Rounding(how, samples[id(weights[name])].mean, penalty)
        else:
            found[name] = how
    return found


def within_budget(
    choice: Choice,
    weights: Mapping[str, torch.Tensor],
    arguments: ExportNeuzipArguments,
    threads: int = 1,
) -> Choice:
    """The choice with the bits of its open weights, which lose least within the budget. weights:
    finite. Weights that are the same tensor count once. CannotExport if the budget is too small.
    """
    if arguments.budget is None:
        return choice
    open_names = frozenset(choice.open)
    kept = {id(weights[name]) for name in choice.coded if name not in open_names}
    first: dict[int, str] = {}  # id of a tensor -> its first name
    trials: dict[str, list[Trial]] = {}
    hows: dict[tuple[str, int], Coding] = {}
    for name in choice.open:
        weight = weights[name]
        if id(weight) in kept or first.setdefault(id(weight), name) != name:
            continue
        dtype = CODED_DTYPES[weight.dtype]
        tried = [coding_with(dtype, bits, arguments) for bits in TRIED_BITS]
        hows |= {(name, how.bits): how for how in tried}
        trials[name] = measure_trials(tried, _slices(weight), threads)
    counts = {name: weights[name].numel() for name in trials}
    chosen = choose_bits(trials, counts, arguments.budget)
    found: dict[str, AnyCoding] = {
        name: hows[source, chosen[source]]
        for name in choice.open
        if (source := first.get(id(weights[name]))) is not None
    }
    return Choice({**choice.coded, **found}, choice.open, choice.plain)


def _slices(weight: torch.Tensor) -> Iterator[memoryview]:
    words = memory_of(weight.detach().to("cpu").contiguous())
    step = SLICE_ELEMENTS * weight.element_size()
    return (words[begin : begin + step] for begin in range(0, len(words), step))


def _sample(weight: torch.Tensor) -> memoryview:
    rows, columns = shape_to_rows(tuple(weight.shape))
    matrix = weight.detach().to("cpu").reshape(rows, columns)
    pieces = [matrix[first : first + count] for first, count in sample_rows(rows, columns)]
    return memory_of(torch.cat(pieces).contiguous())
