"""The base of a model that a job reads: the one that is named, or that which the model declares."""

from deltahub.methods.errors import CannotAdapt
from deltahub.registry.access.caller import Caller
from deltahub.registry.access.permissions import full_name
from deltahub.registry.db.models import Repository, Revision
from deltahub.registry.errors import RevisionNotFound
from deltahub.registry.results import known
from deltahub.registry.results.asked import readable_revision
from deltahub.registry.results.inputs import InputModel, load_model
from deltahub.registry.results.known import (
    may_read,
    why_hidden,
    why_no_base,
    why_unreadable_base,
)
from deltahub.workers.compute.context import ComputeContext


def base_of(
    context: ComputeContext, caller: Caller, model: InputModel, named: int | None
) -> InputModel:
    """The base. named: the row of the one that the job's user names.

    CannotAdapt if the model names none, one that this hub lacks, or one that the user may not read.
    """
    row = named
    if row is None:
        with context.registry.db.read() as session:
            revision = session.get_one(Revision, model.revision_id)
            row, declared = revision.declared_base_revision_id, revision.declared_base
            if row is None:
                raise CannotAdapt(why_no_base(model.title, declared))
            if not may_read(session, caller, session.get_one(Revision, row)):
                raise CannotAdapt(why_unreadable_base(model.title))
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
        known.require_head(session, caller, adapter)


def refuse_hidden_base(base: InputModel, adapter: InputModel) -> None:
    """CannotAdapt if readers of the adapter would read a part of a base that is not theirs."""
    why = why_hidden(base, adapter)
    if why is not None:
        raise CannotAdapt(why)
