"""The pass of `compare`: runs every method on each tensor, and stores nothing."""

from typing import Any, Final, get_args

from deltahub.codecs.dtypes import DType
from deltahub.methods.kinds.merge import COMPARE, Method
from deltahub.workers.compute.context import ComputeContext
from deltahub.workers.jobs.merge.models import load_models
from deltahub.workers.jobs.merge.passes.make import check_memory
from deltahub.workers.jobs.merge.passes.measure import Tensors, measure
from deltahub.workers.jobs.merge.passes.parts import PartReader

# Bytes of the base's tensors that one step compares.
STEP_BYTES: Final = 256 << 20
METHODS: Final = tuple(each for each in get_args(Method) if each not in (COMPARE, "lossless"))


def compare(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: some tensors, from the merged tensor number `first` on.

    {"next": as `make`, "bytes": method -> branch -> encoded bytes, "sums": method -> name -> task
    -> as Sums.to_list}
    """
    models = load_models(context, arguments)
    names = models.plan.merged
    position: int = arguments["first"]
    total = sum(models.base.tensors[name].ref.size for name in names)
    done = sum(models.base.tensors[name].ref.size for name in names[:position])
    begin = done
    # That of the store: low-rank factors are found by the efforts above the lowest alone.
    effort = context.registry.settings.effort
    n_bytes: dict[str, dict[str, int]] = {method: {} for method in METHODS}
    sums: dict[str, dict[str, list[list[float]]]] = {method: {} for method in METHODS}
    while position < len(names) and done - begin < STEP_BYTES:
        name = names[position]
        base, tasks = models.inputs(name)
        if models.is_changed(name):
            dtype = DType.from_name(base.ref.dtype)
            check_memory(name, base.ref.size // dtype.itemsize, len(tasks))
            reader = PartReader(context, [base, *tasks])
            for part in reader.whole():
                near, *tuned = part.words
                words = dict(zip(models.tasks, tuned, strict=True))
                tensors = Tensors(name, dtype, tuple(base.ref.shape), near, words)
                for title, each in zip([models.base, *models.tasks.values()], part.words,
                                       strict=True):  # fmt: skip
                    reader.check_finite(each, name, title.title)
                for method in METHODS:
                    found = measure(models.arguments, method, tensors, effort, context.threads)
                    for ref, n in found.n_bytes.items():
                        n_bytes[method][ref] = n_bytes[method].get(ref, 0) + n
                    sums[method][name] = [each.to_list() for each in found.sums]
        position += 1
        done += base.ref.size
        context.report("compare", done, total)
    following = position if position < len(names) else None
    return {"next": following, "bytes": n_bytes, "sums": sums}
