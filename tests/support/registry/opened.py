"""An open registry in a temporary folder, users and uploads for it."""

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from deltahub.registry import Caller, Registry, Settings
from deltahub.registry.access import tokens, users
from deltahub.registry.access.caller import Scope
from deltahub.registry.catalog.commit import AddFile, CommitResult, Operation, commit
from deltahub.registry.catalog.repositories import RepositoryInfo, create_repository, get_repository
from deltahub.registry.db.models import Token, utc_now
from deltahub.registry.errors import RepositoryExists
from deltahub.registry.storage.disk import Disk
from deltahub.registry.uploads.landing import receive

DATABASE = "deltahub.sqlite3"


@cache
def _empty_database() -> bytes:
    """A database file after all migrations, made once per process because it takes 0.1 s."""
    with TemporaryDirectory() as folder:
        Registry.open(Settings(data_dir=Path(folder))).close()
        with closing(sqlite3.connect(Path(folder) / DATABASE)) as database:
            return database.serialize()


def begin(data_dir: Path) -> None:
    """Make the folder with an empty database in it, unless there is one."""
    if not data_dir.exists():
        data_dir.mkdir(0o700, parents=True)
        (data_dir / DATABASE).write_bytes(_empty_database())


@contextmanager
def opened_registry(
    tmp_path: Path, disk: Disk | None = None, **settings: Any
) -> Iterator[Registry]:
    """A registry in tmp_path/data. Opening it again continues with the same data."""
    if disk is None and "database_url" not in settings:
        begin(tmp_path / "data")
    with Registry.open(Settings(data_dir=tmp_path / "data", **settings), disk) as reg:
        yield reg


def caller(
    reg: Registry, name: str, *, is_admin: bool = False, scope: Scope | None = None
) -> Caller:
    """The user, made if missing, authenticated by a new token, by default of the widest scope."""
    user = next((user for user in users.list_users(reg) if user.name == name), None)
    user = user or users.create_user(reg, name, is_admin=is_admin)
    widest: Scope = "admin" if user.is_admin else "write"
    return tokens.authenticate(reg, tokens.create_token(reg, name, scope or widest))


def end_token(reg: Registry, name: str, how: str) -> None:
    """The user's tokens, `revoked` or `expired`."""
    for token in tokens.list_tokens(reg, name):
        if how == "revoked":
            tokens.revoke_token(reg, token.id)
        else:
            with reg.db.write() as session:
                session.get_one(Token, token.id).expires_at = utc_now()


def sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def upload(reg: Registry, who: Caller, data: bytes) -> str:
    """Upload data; returns its SHA-256."""
    sha256 = sha256_of(data)
    assert receive(reg, who, sha256, len(data), 0, [data] if data else []).is_complete
    return sha256


def ensure_repository(
    reg: Registry, who: Caller, name: str, *, private: bool = False
) -> RepositoryInfo:
    """Make the repository if it is missing; an existing one keeps its visibility."""
    try:
        return create_repository(reg, who, name, private=private)
    except RepositoryExists:
        return get_repository(reg, who, name)


def push(
    reg: Registry,
    who: Caller,
    name: str,
    files: dict[str, bytes],
    *,
    private: bool = False,
    ref: str = "main",
    message: str = "push",
    expected_parent: str | None = None,
    base: str | None = None,
) -> CommitResult:
    """Commit files (path -> bytes) to a repository, made if missing. They are not ingested."""
    ensure_repository(reg, who, name, private=private)
    adds: list[Operation] = [
        AddFile(path, upload(reg, who, data), len(data)) for path, data in files.items()
    ]
    return commit(reg, who, name, ref, adds, message, expected_parent, base)
