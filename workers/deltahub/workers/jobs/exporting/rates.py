"""What the weights that become whole numbers take at each penalty, by samples of their rows."""

from math import prod
from typing import Any

from deltahub.codecs.exports.coding import Coding
from deltahub.codecs.exports.integers import IntegerCoding
from deltahub.methods.exporting.entquant import (
    Encoding,
    Rounding,
    Sample,
    choose_penalty,
    measure_sample,
)
from deltahub.workers.compute.context import ComputeContext
from deltahub.workers.jobs.exporting.inputs import ExportInputs, load_inputs
from deltahub.workers.jobs.exporting.sampling import read_sample
from deltahub.workers.jobs.exporting.weights import is_finite


def measure_rates(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: the bits that an element of weight number `first` takes at each penalty.

    {"next", "measured": [{"name", "count", "bits", "mean"}]}, without one that is not finite
    """
    inputs = load_inputs(context)
    first: int = arguments["first"]
    names = inputs.choice.integers
    tensor, how = inputs.model.tensors[names[first]], inputs.choice.coded[names[first]]
    assert isinstance(how, IntegerCoding), "they were chosen by this"
    measured = []
    if is_finite(context, tensor, how):
        count = prod(tensor.ref.shape)
        found = measure_sample(how, read_sample(context, tensor), count)
        measured = [
            {"name": names[first], "count": count, "mean": found.mean, "bits": list(found.bits)}
        ]
    context.report("measure", first + 1, len(names))
    is_last = first + 1 == len(names)
    return {"next": None if is_last else first + 1, "measured": measured}


def choose(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: how all weights become whole numbers. arguments: parts, which measure_rates returned.

    {"penalty", "means": name -> mean magnitude}
    """
    bits = float(load_inputs(context).arguments.bits)
    measured = [each for part in arguments["parts"] for each in part["measured"]]
    samples = [Sample(each["count"], each["mean"], tuple(each["bits"])) for each in measured]
    penalty = choose_penalty(samples, bits) if samples else 0.0
    return {"penalty": penalty, "means": {each["name"]: each["mean"] for each in measured}}


def encoding_of(inputs: ExportInputs, name: str, rounding: dict[str, Any]) -> Encoding:
    """How a weight is encoded that no budget decides."""
    how = inputs.choice.coded[name]
    if isinstance(how, Coding):
        return how
    # A weight without a mean has infinite or NaN elements, and will be coded lossless.
    return Rounding(how, rounding["means"].get(name, 1.0), rounding["penalty"])
