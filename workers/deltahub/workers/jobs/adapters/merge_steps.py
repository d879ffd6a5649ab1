"""The steps of the job `merge_adapter`."""

from dataclasses import dataclass
from math import prod
from typing import Any, Final

from deltahub.methods.adapters.merged import MergedEstimate
from deltahub.methods.errors import CannotAdapt
from deltahub.methods.kinds.merge_adapter import MergeAdapterArguments
from deltahub.registry.adapters.reports import shown_report
from deltahub.registry.catalog.reserved import MERGED
from deltahub.registry.results.asked import Granted, granted
from deltahub.registry.results.commit import Addition, add_commit
from deltahub.registry.results.files import FileMaker
from deltahub.registry.results.inputs import InputModel, load_model
from deltahub.registry.results.stored import stored_bytes, stored_tensors
from deltahub.workers.compute.context import ComputeContext
from deltahub.workers.jobs.adapters.declared_base import (
    base_of,
    refuse_hidden_base,
    require_head,
    require_readable,
)
from deltahub.workers.jobs.merge.adapters import is_adapter, merge_tensors, parsed
from deltahub.workers.jobs.merge.models import OTHER_WEIGHTS

_CARD: Final = "README.md"
_PROCESS_BYTES: Final = 300 << 20
# Of the largest tensor: base, update, their sum and what lies between as doubles, and their words.
_ELEMENT_BYTES: Final = 5 * 8 + 4 * 4
# Bytes a second that are merged and coded, and those that are read back and hashed.
_CODED_PER_S: Final = 20e6
_HASHED_PER_S: Final = 200e6


@dataclass(frozen=True)
class _Models:
    grant: Granted
    adapter: InputModel
    base: InputModel

    @property
    def weights(self) -> list[str]:
        """The base's safetensors files."""
        return [file.path for file in self.base.files if file.recipe is not None]


def check(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: {"paths": the files to make, "estimate": MergedEstimate}. The errors of `parsed`."""
    models = _models(context)
    changes = parsed(context, models.base, models.adapter).changes
    changed = [models.base.tensors[name].ref for name in changes]
    changed_bytes = sum(each.size for each in changed)
    model_bytes = sum(file.size for file in models.base.files)
    largest = max((prod(each.shape) for each in changed), default=0)
    estimate = MergedEstimate(
        adapter=f"{models.adapter.name}@{models.adapter.commit}",
        base=f"{models.base.name}@{models.base.commit}",
        n_changed=len(changed),
        changed_bytes=changed_bytes,
        model_bytes=model_bytes,
        memory_bytes=_PROCESS_BYTES + largest * _ELEMENT_BYTES,
        seconds=changed_bytes / _CODED_PER_S + model_bytes / _HASHED_PER_S,
    )
    return {"paths": models.weights, "estimate": estimate.model_dump(mode="json")}


def merge_part(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: tensors of base plus adapter, a pack of them, from number `first` on.

    {"next": number of the first of the next pack, or None, "tensors": name -> content id in hex}
    """
    models = _models(context)
    both = (models.base, models.adapter)
    return merge_tensors(context, both, models.adapter.domain_id, arguments["first"])


def make_file(context: ComputeContext, arguments: dict[str, Any]) -> int:
    """Step: the row of a file of the merged model. arguments: path, tensors."""
    models = _models(context)
    (file,) = [each for each in models.base.files if each.path == arguments["path"]]
    assert file.recipe is not None, "only safetensors files are made"
    contents = {name: bytes.fromhex(each) for name, each in arguments["tensors"].items()}
    maker = FileMaker(context.registry, context.reader, models.adapter.domain_id, context.job_id)
    return maker.replace_tensors(
        file.recipe,
        contents,
        lambda done, total: context.report(f"hash {file.path}", done, total),
    )


def publish(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: commits the files to the branch `merged`. arguments: files, tensors."""
    models = _models(context)
    adapter, base = models.adapter, models.base
    require_readable(context, models.grant.caller, base.revision_id)
    kept = {
        file.path: file.row
        for file in base.files
        if file.recipe is None and file.path != _CARD and not file.path.endswith(OTHER_WEIGHTS)
    }
    names = [f"`{each.name}@{each.commit[:12]}`" for each in (base, adapter)]
    card = (
        f"---\nbase_model: {base.name}\nbase_model_relation: finetune\n---\n# {adapter.name},"
        f" merged\n\n{names[0]} with {names[1]} merged in, for clients that know no adapters.\n"
    )
    commit = add_commit(
        context.registry,
        models.grant.caller,
        Addition(
            name=adapter.name,
            branch=MERGED,
            parent=adapter.commit,
            message=f"Merge {adapter.commit[:12]} into {base.name}",
            files=kept | arguments["files"],
            texts={_CARD: card.encode()},
            base=f"{base.name}@{base.commit}",
            is_whole=True,
        ),
    )
    wanted = {bytes.fromhex(each) for each in arguments["tensors"].values()}
    rows = stored_tensors(context.registry, adapter.domain_id, wanted)
    return {
        "name": adapter.name,
        "commit": commit,
        "branch": MERGED,
        "stored_bytes": stored_bytes(context.registry, rows.values()),
    }


def _models(context: ComputeContext) -> _Models:
    """Both, if the job's user may still read them."""
    grant = granted(context.registry, context.job_id)
    known = context.memo.get("merged adapter")
    if isinstance(known, _Models) and known.grant == grant:
        return known
    arguments = MergeAdapterArguments.model_validate(grant.arguments)
    adapter = load_model(context.registry, context.reader, grant.revisions[0], context.job_id)
    if not is_adapter(adapter):
        raise CannotAdapt(f"{adapter.title} is no adapter: it is a full model already")
    require_head(context, grant.caller, adapter)
    with context.registry.db.read() as session:
        report = shown_report(session, grant.caller, adapter.revision_id)
    if report is not None and report["state"] in ("quarantined", "broken"):
        raise CannotAdapt(
            f"{adapter.title} is {report['state']}: {report['why']}. {report['way_out']}"
        )
    named = grant.revisions[1] if arguments.base is not None else None
    base = base_of(context, grant.caller, adapter, named)
    refuse_hidden_base(base, adapter)
    models = _Models(grant, adapter, base)
    context.memo["merged adapter"] = models
    return models
