"""The steps of the job that read weights."""

import base64
import resource
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from deltahub.codecs.frames.base_choice import TensorInfo
from deltahub.methods.comparing.modules import place_of
from deltahub.methods.comparing.picture import side_of
from deltahub.methods.comparing.report import ComparingEstimate
from deltahub.methods.comparing.tensor import compare_tensor
from deltahub.registry.results.asked import granted
from deltahub.registry.results.comparisons.estimate import BYTES_PER_S
from deltahub.registry.results.comparisons.write import packed
from deltahub.registry.results.inputs import InputModel, load_model
from deltahub.workers.compute.context import ComputeContext
from deltahub.workers.jobs.compare.reading import PairReader

# Bytes of weights, and tensors, of one step: what a kill costs at most.
STEP_BYTES: Final = 1 << 30
STEP_TENSORS: Final = 128
# Memory of the process without tensors, and of each tensor that is compared at most.
PROCESS_BYTES: Final = 300 << 20
TENSOR_BYTES: Final = 640 << 20
# What a tensor that is not measured has in place of numbers.
_NO_NUMBERS: Final = {
    "n_same": None, "n_odd": None, "norm": None, "change": None, "relative": None, "largest": None,
    "cosine": None, "mean": None, "deviation": None, "rank_90": None, "rank_99": None,
    "rank_limit": None,
}  # fmt: skip
_SAME: Final = {"n_odd": 0, "change": 0.0, "relative": 0.0, "largest": 0.0, "mean": 0.0,
                "deviation": 0.0}  # fmt: skip


def check(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: {"estimate": ComparingEstimate, "side": of the heat maps}."""
    first, second = _models(context)
    names = _names(first, second)
    read = [name for name in names if _status(first, second, name) == "changed"]
    n_bytes = sum(first.tensors[name].ref.size + second.tensors[name].ref.size for name in read)
    estimate = ComparingEstimate(
        n_tensors=len(names),
        n_read=len(read),
        read_bytes=n_bytes,
        seconds=n_bytes / BYTES_PER_S,
    )
    return {"estimate": estimate.model_dump(mode="json"), "side": side_of(len(read))}


def compare_some(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: some tensors, from number `first` on, several at once.

    arguments: first, number of the part, side of the heat maps. {"next": number of the next
    tensor, or None, "tensors": their numbers, "part": their details, packed, in base 64}
    """
    first, second = _models(context)
    names = _names(first, second)
    sizes = [_bytes_read(first, second, name) for name in names]
    begin: int = arguments["first"]
    end = _end_of_step(sizes, begin)
    progress = _Progress(context, sum(sizes[:begin]), sum(sizes))

    def compare(name: str) -> tuple[dict[str, Any], dict[str, Any] | None]:
        return _compare(context, (first, second), name, arguments["side"], progress)

    with ThreadPoolExecutor(_threads(context)) as pool:
        found = list(pool.map(compare, names[begin:end]))
    details = {shown["name"]: detail for shown, detail in found if detail is not None}
    return {
        "next": end if end < len(names) else None,
        "tensors": [
            shown | {"part": None if detail is None else arguments["number"]}
            for shown, detail in found
        ],
        "part": base64.b64encode(packed(details)).decode(),
    }


def _end_of_step(sizes: Sequence[int], begin: int) -> int:
    """The number of the first tensor of the next step. sizes: bytes that are read, by number."""
    end, taken, n_read = begin, 0, 0
    while end < len(sizes) and taken < STEP_BYTES and n_read < STEP_TENSORS:
        taken += sizes[end]
        n_read += sizes[end] > 0
        end += 1
    return end


def _threads(context: ComputeContext) -> int:
    """Tensors at once: one for each thread that the process has memory for."""
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if limit == resource.RLIM_INFINITY:
        return max(1, context.threads)
    return max(1, min(context.threads, (limit - PROCESS_BYTES) // TENSOR_BYTES))


class _Progress:
    """Adds up what the threads of a step have read."""

    def __init__(self, context: ComputeContext, done: int, total: int) -> None:
        self._context = context
        self._done = done
        self._total = total
        self._lock = threading.Lock()

    def add(self, n_bytes: int) -> None:
        with self._lock:
            self._done += n_bytes
            done = min(self._done, self._total)
        self._context.report("compare", done, self._total)


def _models(context: ComputeContext) -> tuple[InputModel, InputModel]:
    """Both models, if the job's user may still read them."""
    grant = granted(context.registry, context.job_id)
    known = context.memo.get("compared")
    if isinstance(known, tuple) and known[0] == grant:
        models: tuple[InputModel, InputModel] = known[1]
        return models
    first, second = (
        load_model(context.registry, context.reader, row, context.job_id) for row in grant.revisions
    )
    context.memo["compared"] = (grant, (first, second))
    return first, second


def _names(first: InputModel, second: InputModel) -> list[str]:
    return [*first.tensors, *(name for name in second.tensors if name not in first.tensors)]


def _status(first: InputModel, second: InputModel, name: str) -> str:
    own, other = first.tensors.get(name), second.tensors.get(name)
    if own is None:
        return "only_second"
    if other is None:
        return "only_first"
    if own.ref.shape != other.ref.shape:
        return "reshaped"
    # The registry knows tensors by the hash of their bytes.
    is_same = (own.ref.tensor, own.ref.dtype) == (other.ref.tensor, other.ref.dtype)
    return "same" if is_same else "changed"


def _bytes_read(first: InputModel, second: InputModel, name: str) -> int:
    if _status(first, second, name) != "changed":
        return 0
    return first.tensors[name].ref.size + second.tensors[name].ref.size


def _compare(
    context: ComputeContext,
    models: tuple[InputModel, InputModel],
    name: str,
    side: int,
    progress: _Progress,
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """(the tensor as the report has it, its details if it was measured). side: of its heat map."""
    first, second = models
    status = _status(first, second, name)
    own, other = first.tensors.get(name), second.tensors.get(name)
    either = own or other
    assert either is not None
    layer, module = place_of(name)
    shown: dict[str, Any] = {
        "name": name,
        "status": status,
        "layer": layer,
        "module": module,
        "dtype": either.ref.dtype,
        "shape": list(either.ref.shape),
        "count": TensorInfo(name, either.ref.dtype, either.ref.shape).count,
        "second_dtype": None if other is None else other.ref.dtype,
        "second_shape": None if other is None else list(other.ref.shape),
        **_NO_NUMBERS,
    }
    if status == "same":
        return shown | _SAME | {"n_same": shown["count"]}, None
    if status != "changed" or own is None or other is None:
        return shown, None
    pair = PairReader(context, own, other, progress.add)
    if not pair.is_measured:
        return shown | {"n_same": pair.count_same()}, None
    compared = compare_tensor(tuple(own.ref.shape), pair.read, side)
    return shown | compared.numbers, compared.detail
