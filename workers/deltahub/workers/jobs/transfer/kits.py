"""The kits of adapters, as far as the job's user may have them used."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from deltahub.methods.errors import CannotTransfer
from deltahub.methods.transfer.discriminator_file import discriminator_files
from deltahub.methods.transfer.kit import TransferKit
from deltahub.registry.access.caller import Caller
from deltahub.registry.access.permissions import allowed, full_name
from deltahub.registry.adapters.kits import (
    StoredKit,
    kit_id_of,
    read_discriminator,
    stored_kit,
)
from deltahub.registry.db.models import Repository, Revision
from deltahub.registry.results.inputs import InputModel
from deltahub.workers.compute.context import ComputeContext


@dataclass(frozen=True)
class UsableKit:
    """A kit, and why its discriminator does not fit; None if it does.

    fault: then only its seeds and its contract are used.
    """

    kit: TransferKit
    stored: StoredKit
    fault: str | None

    def discriminator(self, context: ComputeContext) -> Mapping[str, bytes]:
        """The files of the adapter that PEFT loads. Conflict if the kit is gone; DataLost."""
        return discriminator_files(read_discriminator(context.registry, self.stored))


def usable_kit(
    context: ComputeContext, caller: Caller, adapter: InputModel, base: InputModel
) -> tuple[UsableKit | None, str | None]:
    """(the kit, None) or (None, why there is none).

    A kit tells something about private data, and a move shows inputs that are made up like them.
    Therefore only those who may write to the adapter's repository have it used.
    """
    with context.registry.db.read() as session:
        row = session.get_one(Revision, adapter.revision_id).repository_id
    found = usable_kit_of(context, caller, row, base)
    return (None, found) if isinstance(found, str) else (found, None)


def usable_kit_of(
    context: ComputeContext, caller: Caller, repository_id: int, base: InputModel
) -> UsableKit | str:
    """Do the same for the adapter of a repository."""
    found = _stored(context, caller, repository_id)
    if isinstance(found, str):
        return found
    kit, stored = found
    return UsableKit(kit, stored, _fault(kit, stored, base))


def pool_kit(
    context: ComputeContext, caller: Caller, adapter: InputModel, own: UsableKit, revision_id: int
) -> UsableKit:
    """The kit from which inputs are made up for several adapters. revision_id: of its adapter.

    CannotTransfer unless it shows the task of `own`, the kit of the adapter that moves, in the same
    form, belongs to the same namespace, and may be used by the caller.
    """
    with context.registry.db.read() as session:
        one, other = (
            session.get_one(Repository, session.get_one(Revision, row).repository_id)
            for row in (adapter.revision_id, revision_id)
        )
        name = full_name(session, other)
    if one.id == other.id:
        return own
    if one.namespace_id != other.namespace_id:
        raise CannotTransfer(
            f"pool names {name}, and inputs are shared only within the namespace of {adapter.name}:"
            " leave pool out"
        )
    found = _stored(context, caller, other.id)
    if isinstance(found, str):
        raise CannotTransfer(f"pool: {found}")
    kit, stored = found
    if kit.contract != own.kit.contract:
        raise CannotTransfer(
            f"the kits of {name} and {adapter.name} have different contracts, so that their inputs"
            " differ in form: leave pool out"
        )
    return UsableKit(kit, stored, None)


def _stored(
    context: ComputeContext, caller: Caller, repository_id: int
) -> tuple[TransferKit, StoredKit] | str:
    """The kit of a repository; or why the caller has none used."""
    with context.registry.db.read() as session:
        repository = session.get_one(Repository, repository_id)
        stored = stored_kit(session, repository_id)
        may_use = allowed(session, caller, "write", repository)
        name = full_name(session, repository)
    if stored is None:
        return f"{name} has no kit: make one where its private data are (deltahub adapter kit)"
    if not may_use:
        return f"{name} has a kit, which is used only for those who may write to its repository"
    # What is stored was checked when it came.
    return TransferKit.model_validate_json(json.dumps(stored.kit)), stored


def usable_kit_id(context: ComputeContext, caller: Caller, revision_id: int) -> str | None:
    """The id of the kit that is found now. revision_id: of its adapter."""
    with context.registry.db.read() as session:
        row = session.get_one(Revision, revision_id).repository_id
        may_use = allowed(session, caller, "write", session.get_one(Repository, row))
        return kit_id_of(session, row) if may_use else None


def _fault(kit: TransferKit, stored: StoredKit, base: InputModel) -> str | None:
    """Why the discriminator does not fit; None if it does."""
    try:
        if stored.base_revision_id != base.revision_id:
            kit.require_base(f"{base.name}@{base.commit}")
        kit.discriminator.require_better_than_chance()
    except CannotTransfer as error:
        return str(error)
    return None
