"""The base of a model that a job reads: the one that is named, or that which the model declares."""

from deltahub.methods.errors import CannotAdapt
from deltahub.registry.access.caller import Caller
from deltahub.registry.db.models import Revision
from deltahub.registry.results.asked import readable_revision
from deltahub.registry.results.inputs import InputModel, load_model
from deltahub.workers.compute.context import ComputeContext


def base_of(
    context: ComputeContext, caller: Caller, model: InputModel, named: int | None
) -> InputModel:
    """The base. named: the row of the one that the job's user names.

    CannotAdapt if the model names none, or one that this hub lacks; RepositoryNotFound if the user
    may not read it.
    """
    row = named
    if row is None:
        with context.registry.db.read() as session:
            revision = session.get_one(Revision, model.revision_id)
            row, declared = revision.declared_base_revision_id, revision.declared_base
        if row is None:
            told = "names no base"
            if declared:
                told = f"names {declared} as its base, which this hub lacks"
            raise CannotAdapt(f"{model.title} {told}: push the base, and name it by --base")
    base = load_model(context.registry, context.reader, row, context.job_id)
    if named is None:
        # The user may have lost the right to read it since the model was pushed.
        readable_revision(context.registry, caller, f"{base.name}@{base.commit}")
    return base


def refuse_hidden_base(base: InputModel, adapter: InputModel) -> None:
    """CannotAdapt if readers of the adapter would read a part of a base that is not theirs."""
    if base.is_private and not adapter.is_private:
        raise CannotAdapt(
            f"{base.title} is private, and the result would put a part of its weights into"
            f" {adapter.name}, which is public: make the adapter private first"
        )
    if base.is_private and base.domain_id != adapter.domain_id:
        raise CannotAdapt(
            f"{base.title} is private in another namespace, and its weights stay there: push the"
            " adapter to that namespace"
        )
