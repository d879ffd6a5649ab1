"""Under which name clients know a repository's chunks: what they remember of another, they drop.

A client remembers for weeks which chunks it has sent to a URL, and does not send them there again.
So the URL is another one as soon as the hub may lack some of them: when the operator raises the
setting, when the hub has dropped chunks of the repository or was named some that it does not have,
and when the repository is not the one that had the name or the row id before.
"""

import re
from typing import Final

from deltahub.registry.access.caller import Action, Caller
from deltahub.registry.access.permissions import repository_not_found, require
from deltahub.registry.db.models import Repository, XetEpoch
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.names import quoted
from deltahub.registry.settings import Settings

_PLACE: Final = re.compile(r"r([0-9]{1,18})-([0-9a-f]{1,16})")


def epoch_of(session: ReadSession, settings: Settings, repository: Repository) -> int:
    """The epoch that clients are told now; it only ever grows."""
    row = session.get(XetEpoch, repository.id)
    return settings.xet_epoch + (0 if row is None else row.epoch)


def place_of(repository: Repository) -> str:
    """What names the repository in URLs: its row and, since rows' ids come again, its birth."""
    return f"r{repository.id}-{_birth(repository)}"


def repository_at(
    session: ReadSession, caller: Caller | None, place: str, action: Action
) -> Repository:
    """The repository of a place, if the caller may do that; as repositories.load_repository."""
    match = _PLACE.fullmatch(place)
    repository = None if match is None else session.get(Repository, int(match[1]))
    if match is None or repository is None or _birth(repository) != match[2]:
        raise repository_not_found(quoted(place))
    require(session, caller, action, repository)
    return repository


def advance_epoch(session: WriteSession, repository_id: int) -> None:
    """From now on clients begin anew with this repository."""
    row = session.get(XetEpoch, repository_id, with_for_update=True)
    if row is None:
        session.add(XetEpoch(repository_id=repository_id, epoch=1))
    else:
        row.epoch += 1
    session.flush()


def _birth(repository: Repository) -> str:
    return f"{int(repository.created_at.timestamp() * 1e6):x}"
