"""The first step of the job `export_neuzip`: what the export will take."""

from math import prod
from typing import Any, Final

from deltahub.codecs.exports.coding import AnyCoding
from deltahub.codecs.exports.integers import IntegerCoding
from deltahub.codecs.files.recipe import TensorRef
from deltahub.methods.exporting.report import ExportEstimate, estimated_bytes
from deltahub.methods.inference.perplexity import WINDOW
from deltahub.methods.kinds.weights.choice import refuse_small_budget
from deltahub.registry.results.tensors import MEMORY_BYTES
from deltahub.registry.uploads.limits import require_room
from deltahub.workers.compute.context import ComputeContext
from deltahub.workers.jobs.exporting.inputs import ExportInputs, load_inputs
from deltahub.workers.jobs.exporting.sampling import sample_weights
from deltahub.workers.jobs.exporting.scoring import check_text

# What the process takes besides a slice and its copies.
_PROCESS_BYTES: Final = 270 << 20
# Copies of a slice: its words, those that are kept, planes and frames.
_COPIES: Final = 6
# What torch and transformers take when a text is scored, besides the whole plain model; and the
# activations or logits of a window, for each of the model's widest dimension.
_SCORING_BYTES: Final = 400 << 20
_WINDOW_BYTES: Final = WINDOW * 4 * 4
# A budget below this share of what a sample takes is refused before all weights are measured.
_SURE: Final = 0.97


def check(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: {"estimate": ExportEstimate}."""
    inputs = load_inputs(context)
    tensors, choice, given = inputs.model.tensors, inputs.choice, inputs.arguments
    plain = sum(each.ref.size for each in tensors.values())
    if given.text is not None:
        check_text(context, inputs.model, given.text)
    sampled = sample_weights(context, inputs)
    budget = given.budget or 0
    if sampled.span is not None:
        least, most = sampled.span
        if budget < _SURE * least:
            refuse_small_budget(budget, least)
        budget = min(max(budget, least), most)
    estimate = ExportEstimate(
        n_weights=len(choice.coded),
        plain_bytes=plain,
        export_bytes=_export_bytes(inputs, budget),
        memory_bytes=_memory_bytes(inputs),
        seconds=round(sampled.seconds, 1),
        budget_range=sampled.span,
        has_text=given.text is not None,
    )
    require_room(context.registry, estimate.export_bytes)
    return {"estimate": estimate.model_dump(mode="json")}


def _export_bytes(inputs: ExportInputs, budget: float) -> int:
    """What the export takes, about. budget: bits of an element of the weights it is for."""
    tensors, choice, bits = inputs.model.tensors, inputs.choice, inputs.arguments.bits
    export = sum(tensors[name].ref.size for name in choice.plain)
    for name, how in choice.coded.items():
        count = prod(tensors[name].ref.shape)
        if name in choice.open:
            export += round(budget * count / 8)
        else:
            export += estimated_bytes(how, count, 0 if bits == "auto" else int(bits))
    return export


def _memory_bytes(inputs: ExportInputs) -> int:
    """What the compute process takes at most."""
    memory = _PROCESS_BYTES + max(
        _coding_bytes(inputs.model.tensors[name].ref, how)
        for name, how in inputs.choice.coded.items()
    )
    if inputs.arguments.text is not None:
        refs = [each.ref for each in inputs.model.tensors.values()]
        widest = max((size for ref in refs for size in ref.shape), default=0)
        memory += sum(ref.size for ref in refs) + _SCORING_BYTES + widest * _WINDOW_BYTES
    return memory


def _coding_bytes(ref: TensorRef, how: AnyCoding) -> int:
    """What coding a weight takes: copies of a slice, and parts that wait for their size."""
    element = how.dtype.itemsize * _COPIES
    if isinstance(how, IntegerCoding):
        element += 8 + 4  # as doubles, then as floats
    count = min(how.slice_elements, prod(ref.shape))
    # Each part waits, and the one that is stored once more.
    return count * element + min(2 * ref.size, (len(how.parts) + 1) * MEMORY_BYTES)
