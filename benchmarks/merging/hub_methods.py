"""The hub's own methods, as `deltahub merge` runs them: weights, and the bytes that are encoded.

Stored are the base as it is, and everything else as frames.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.merging.methods import (
    Merged,
    Method,
    best_of,
    mergeable,
    size_bytes,
    with_kept,
)
from benchmarks.merging.suite import Suite, Tensors
from deltahub.codecs._native import elect_unified, merge_task
from deltahub.codecs.dtypes import DType
from deltahub.codecs.protocol import Effort
from deltahub.codecs.words import WORD_KINDS
from deltahub.methods.kinds.merge import MergeArguments
from deltahub.methods.merging import emr
from deltahub.methods.merging.emr import Sums
from deltahub.methods.merging.static import STATIC
from deltahub.workers.jobs.merge.passes.measure import Tensors as Words
from deltahub.workers.jobs.merge.passes.measure import measure
from deltahub.workers.jobs.merge.passes.outcomes import MAIN, outcome

_DTYPES = {torch.float32: DType.F32, torch.bfloat16: DType.BF16}
_INTEGERS = {torch.float32: (torch.int32, np.int32), torch.bfloat16: (torch.int16, np.int16)}
# Of static methods with a scale; the best on the test sets is taken, which flatters them.
SCALES = (0.3, 0.5, 0.7, 1.0, 1.3, 1.6, 2.0)


def by_hub(suite: Suite, method: str, note: str = "", **options: Any) -> Merged:
    """What the hub makes of the suite by one method."""
    arguments = _arguments(method, **options)
    tasks = [task.name for task in suite.tasks]
    stored = size_bytes(suite.base)
    made: dict[str, Tensors] = {task: {} for task in tasks}
    words = {name: _words_of(suite, name) for name in mergeable(suite)}
    sums: dict[str, Sequence[Sums]] = {}
    for name, given in words.items():
        found = measure(arguments, method, given, Effort.DEFAULT, 1)
        stored += sum(found.n_bytes.values())
        sums[name] = found.sums
    if method == "emr":
        _add_emr(suite, arguments, (words, sums), made)
    else:
        _add_outcomes(suite, arguments, words, made)
    return with_kept(suite, [made[task] for task in tasks], stored, note)


def with_best_scale(suite: Suite, method: str) -> Merged:
    """by_hub with the scale that is best on the test sets."""
    tried = []
    for scale in SCALES:
        made: dict[str, Tensors] = {task.name: {} for task in suite.tasks}
        words = {name: _words_of(suite, name) for name in mergeable(suite)}
        _add_outcomes(suite, _arguments(method, scale=scale), words, made)
        tried.append(with_kept(suite, [made[task.name] for task in suite.tasks], 0, str(scale)))
    best = best_of(suite, tried).note.partition(",")[0]
    return by_hub(suite, method, f"scale {best}, best on the test sets", scale=float(best))


def lossless(suite: Suite) -> Merged:
    """Every fine-tune as the deltas that the hub stores: exact."""
    stored = size_bytes(suite.base)
    for name in mergeable(suite):
        given = _words_of(suite, name)
        for task, tuned in given.tasks.items():
            alone = Words(name, given.dtype, given.shape, given.base, {task: tuned})
            # The average of one model is the model.
            found = measure(_arguments("average"), "average", alone, Effort.DEFAULT, 1)
            stored += sum(found.n_bytes.values())
    whole = [{name: task.weights[name] for name in mergeable(suite)} for task in suite.tasks]
    return with_kept(suite, whole, stored)


HUB_METHODS: dict[str, Method] = {
    "TIES, hub": partial(with_best_scale, method="ties"),
    "ISO-C, hub": partial(with_best_scale, method="iso-c"),
    "TSV-M, hub": partial(with_best_scale, method="tsv-m"),
    "EMR, hub": partial(by_hub, method="emr"),
    "EMR, hub, L2": partial(by_hub, method="emr", rescaler="l2"),
    "EMR, hub, L1 a tensor": partial(by_hub, method="emr", rescaler="tensor-l1"),
    "BitDelta, hub": partial(by_hub, method="bitdelta"),
    "low rank, hub": partial(by_hub, method="low-rank"),
    "lossless deltas": lossless,
}


def _arguments(method: str, **options: Any) -> MergeArguments:
    given = {"name": "a/merged", "base": "a/base", "models": ["a/x", "a/y"], "method": method}
    return MergeArguments.model_validate(given | options)


def _words_of(suite: Suite, name: str) -> Words:
    base = suite.base[name]
    tuned = {task.name: _words(task.weights[name]) for task in suite.tasks}
    return Words(name, _DTYPES[base.dtype], tuple(base.shape), _words(base), tuned)


def _words(tensor: torch.Tensor) -> memoryview:
    raw = tensor.contiguous().view(_INTEGERS[tensor.dtype][0]).numpy()
    return memoryview(bytearray(raw.tobytes()))


def _tensor(words: memoryview, like: torch.Tensor) -> torch.Tensor:
    raw = torch.from_numpy(np.frombuffer(words, _INTEGERS[like.dtype][1]).copy())
    return raw.view(like.dtype).reshape(like.shape)


def _add_outcomes(
    suite: Suite, arguments: MergeArguments, words: Mapping[str, Words], made: dict[str, Tensors]
) -> None:
    method = arguments.method
    for name, given in words.items():
        tensors = (given.dtype, given.shape, given.base, given.tasks)
        found = outcome(arguments, method, name, tensors).made
        for task in given.tasks:
            made[task][name] = _tensor(found[MAIN if method in STATIC else task], suite.base[name])


def _add_emr(
    suite: Suite,
    arguments: MergeArguments,
    measured: tuple[Mapping[str, Words], Mapping[str, Sequence[Sums]]],
    made: dict[str, Tensors],
) -> None:
    words, sums = measured
    for number, task in enumerate(suite.tasks):
        of_task = {name: each[number] for name, each in sums.items()}
        scales = emr.scales(arguments.rescaler, of_task)
        for name, given in words.items():
            kind = WORD_KINDS[given.dtype]
            unified, out = (memoryview(bytearray(len(given.base))) for _ in range(2))
            elect_unified(kind, given.base, [*given.tasks.values()], unified, 1)
            own = given.tasks[task.name]
            merge_task(kind, given.base, unified, own, scales[name], out, 1)
            made[task.name][name] = _tensor(out, suite.base[name])
