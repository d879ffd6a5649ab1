"""Reads the results of commits."""

from deltahub.registry import Caller, Registry
from deltahub.registry.access import users
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.catalog.commit import AddFile, list_entries, resolve_revision
from deltahub.registry.db.models import Revision
from support.registry.opened import upload

NAME = "alice/model"


def revision(reg: Registry, name: str = NAME, rev: str = "main") -> Revision:
    with reg.db.read() as session:
        owner = caller_of(reg, name)
        return resolve_revision(session, load_repository(session, owner, name), rev)


def caller_of(reg: Registry, name: str) -> Caller:
    user = next(u for u in users.list_users(reg) if u.name == name.partition("/")[0])
    return Caller(user.id, user.name, user.is_admin, "admin")


def files(reg: Registry, rev: str = "main", name: str = NAME) -> dict[str, str]:
    row = revision(reg, name, rev)
    with reg.db.read() as session:
        return {entry.path: entry.file.sha256 for entry in list_entries(session, row)}


def add(reg: Registry, who: Caller, path: str, data: bytes) -> AddFile:
    return AddFile(path, upload(reg, who, data), len(data))
