"""Epochs: a number in the URL for Xet uploads to a repository. Clients forget chunks when it grows.

A client remembers for weeks which chunks it has sent to a URL, and does not send them there again.
So the URL changes when the hub may lack some of them. This happens when the operator raises the
setting, when the hub has deleted chunks of the repository, when a client refers to chunks that the
hub lacks, and when a new repository gets the name or the row id of an earlier one.
"""

import re
import secrets
from typing import Final

from deltahub.registry.access.caller import Action, Caller
from deltahub.registry.access.permissions import repository_not_found, require
from deltahub.registry.db.models import Repository, XetEpoch
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.names import quoted
from deltahub.registry.settings import Settings

# More steps than a repository's epoch takes between a backup and the loss of the hub.
_LEAST_LEAP: Final = 1 << 16
_LEAPS: Final = 1 << 20

_PLACE: Final = re.compile(r"r([0-9]{1,18})-([0-9a-f]{1,16})")


def epoch_of(session: ReadSession, settings: Settings, repository: Repository) -> int:
    """The current epoch of the repository; it never decreases."""
    row = session.get(XetEpoch, repository.id)
    return settings.xet_epoch + (0 if row is None else row.epoch)


def place_of(repository: Repository) -> str:
    """The part of URLs that names the repository: its row id and, as ids are reused, its creation
    time.
    """
    return f"r{repository.id}-{_creation_time(repository)}"


def repository_at(
    session: ReadSession, caller: Caller | None, place: str, action: Action
) -> Repository:
    """The repository of a URL part made by place_of(); errors as in load_repository()."""
    match = _PLACE.fullmatch(place)
    repository = None if match is None else session.get(Repository, int(match[1]))
    if match is None or repository is None or _creation_time(repository) != match[2]:
        raise repository_not_found(quoted(place))
    require(session, caller, action, repository)
    return repository


def advance_epoch(session: WriteSession, repository_id: int) -> None:
    """Advance the epoch: clients send all chunks to this repository again."""
    row = session.get(XetEpoch, repository_id, with_for_update=True)
    if row is None:
        session.add(XetEpoch(repository_id=repository_id, epoch=1))
    else:
        row.epoch += 1
    session.flush()


def leap_epoch(session: WriteSession, repository_id: int) -> None:
    """Advance the epoch of a restored repository by a large random number.

    The lost hub may have advanced it after the backup. Its clients remember chunks for those epochs
    too, so a restored hub must not come to the same numbers.
    """
    leap = _LEAST_LEAP + secrets.randbelow(_LEAPS)
    row = session.get(XetEpoch, repository_id, with_for_update=True)
    if row is None:
        session.add(XetEpoch(repository_id=repository_id, epoch=leap))
    else:
        row.epoch += leap


def _creation_time(repository: Repository) -> str:
    return f"{int(repository.created_at.timestamp() * 1e6):x}"
