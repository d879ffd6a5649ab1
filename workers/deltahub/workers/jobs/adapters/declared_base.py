"""The base of a model that a job reads: the one that is named, or that which the model declares."""

from deltahub.methods.errors import CannotAdapt
from deltahub.registry.access.caller import Caller
from deltahub.registry.access.permissions import full_name
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.db.models import Repository, Revision
from deltahub.registry.errors import RefMoved, RevisionNotFound
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
    if named is None:
        require_readable(context, caller, row)
    return load_model(context.registry, context.reader, row, context.job_id)


def require_readable(context: ComputeContext, caller: Caller, row: int) -> None:
    """RepositoryNotFound or RevisionNotFound if the user may not read this revision any more."""
    with context.registry.db.read() as session:
        revision = session.get(Revision, row)
        if revision is None:
            raise RevisionNotFound("the model's base was deleted meanwhile")
        repository = session.get_one(Repository, revision.repository_id)
        name = f"{full_name(session, repository)}@{revision.commit}"
    readable_revision(context.registry, caller, name)


def require_head(context: ComputeContext, caller: Caller, adapter: InputModel) -> None:
    """Forbidden unless the user may write to the adapter's repository, whatever it costs to find
    out at the end; RefMoved if the adapter is not at the head of its main.
    """
    with context.registry.db.read() as session:
        repository = load_repository(session, caller, adapter.name, "write")
        if repository.head_id != adapter.revision_id:
            raise RefMoved(
                f"{adapter.title} is not the head of main any more: ask for the one that is"
            )


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
