"""Read, write and delete permissions. An unreadable repository behaves as an absent one."""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import get_args

import pytest

from deltahub.registry import Caller, Registry
from deltahub.registry.access import organizations, users
from deltahub.registry.access.caller import Action
from deltahub.registry.access.permissions import allowed, require
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.access.visibility import readable_tensors
from deltahub.registry.catalog.commit import AddFile, commit
from deltahub.registry.catalog.lists.search import list_repositories
from deltahub.registry.catalog.repositories import (
    create_repository,
    delete_repository,
    get_repository,
)
from deltahub.registry.db.models import File, FileTensor, Hold, Tensor, utc_now
from deltahub.registry.errors import Forbidden, RepositoryNotFound, Unauthorized, UploadNotFound
from support.registry.opened import caller, opened_registry, push, sha256_of


class Hub:
    """An organization `lab` with members of every role, a public and a private repository."""

    def __init__(self, reg: Registry) -> None:
        self.reg = reg
        organizations.create_organization(reg, "lab")
        self.by_name: dict[str, Caller | None] = {
            "nobody": None,
            "stranger": caller(reg, "stranger"),
        }
        for role in ("read", "write", "admin"):
            users.create_user(reg, f"{role}er")
            organizations.add_member(reg, "lab", f"{role}er", role)
            self.by_name[f"{role}er"] = caller(reg, f"{role}er", scope="write")
        root = caller(reg, "root", is_admin=True)
        self.by_name |= {"root": root, "root with scope write": replace(root, scope="write")}
        admin = self["adminer"]
        assert admin is not None
        self.by_name["adminer with scope read"] = replace(admin, scope="read")
        create_repository(reg, admin, "lab/public")
        create_repository(reg, admin, "lab/private", private=True)

    def __getitem__(self, name: str) -> Caller | None:
        return self.by_name[name]

    def rights(self, name: str, repository: str) -> str:
        """The first letters of the allowed actions."""
        actions: tuple[Action, ...] = get_args(Action)
        with self.reg.db.read() as session:
            row = load_repository(session, self["root"], f"lab/{repository}")
            return "".join(a[0] for a in actions if allowed(session, self[name], a, row))


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with opened_registry(tmp_path) as reg:
        yield Hub(reg)


@pytest.mark.parametrize(
    ("name", "on_public", "on_private"),
    [
        ("nobody", "r", ""),
        ("stranger", "r", ""),
        ("reader", "r", "r"),
        ("writeer", "rw", "rw"),
        ("adminer", "rwa", "rwa"),
        ("adminer with scope read", "r", "r"),
        ("root", "rwa", "rwa"),
        ("root with scope write", "r", ""),
    ],
)
def test_role_scope_and_visibility_decide(
    hub: Hub, name: str, on_public: str, on_private: str
) -> None:
    assert (hub.rights(name, "public"), hub.rights(name, "private")) == (on_public, on_private)


@pytest.mark.parametrize("name", ["nobody", "stranger", "reader", "root", "root with scope write"])
def test_the_list_holds_what_may_be_read(hub: Hub, name: str) -> None:
    listed = {item.name for item in list_repositories(hub.reg, hub[name]).items}
    readable = {f"lab/{r}" for r in ("public", "private") if "r" in hub.rights(name, r)}
    assert listed == readable


@pytest.mark.parametrize("name", ["nobody", "stranger"])
def test_an_unreadable_repository_cannot_be_told_from_an_absent_one(hub: Hub, name: str) -> None:
    who = hub[name]
    messages = []
    for repository in ("lab/private", "lab/absent_"):
        with pytest.raises(RepositoryNotFound) as raised:
            get_repository(hub.reg, who, repository)
        messages.append(str(raised.value).replace(repository, "?"))
        with pytest.raises(RepositoryNotFound), hub.reg.db.read() as session:
            load_repository(session, who, repository, "write")
    assert messages[0] == messages[1]


def test_a_refusal_says_what_is_missing(hub: Hub) -> None:
    with hub.reg.db.read() as session:
        row = load_repository(session, None, "lab/public")
        with pytest.raises(Unauthorized, match="needs a token"):
            require(session, None, "write", row)
        with pytest.raises(Forbidden, match="scope read"):
            require(session, hub["adminer with scope read"], "write", row)
        with pytest.raises(Forbidden, match="needs the role admin in the namespace of lab/public"):
            require(session, hub["writeer"], "admin", row)
        with pytest.raises(Forbidden, match="org member lab reader --role write`"):
            require(session, hub["reader"], "write", row)
    theirs = push(hub.reg, caller(hub.reg, "stranger"), "stranger/model", {"f": b"f"})
    assert theirs.changed
    with hub.reg.db.read() as session, pytest.raises(Forbidden, match="is stranger's own"):
        load_repository(session, hub["reader"], "stranger/model", "write")
    with pytest.raises(Forbidden, match=r"'root', or there is no such.*may in: lab, writeer$"):
        create_repository(hub.reg, hub["writeer"], "root/model")


def test_only_writers_of_a_namespace_make_repositories_in_it(hub: Hub) -> None:
    for name in ("stranger", "reader"):
        with pytest.raises(Forbidden) as raised:
            create_repository(hub.reg, hub[name], "lab/new")
        with pytest.raises(Forbidden) as absent:
            create_repository(hub.reg, hub[name], "bal/new")
        assert str(raised.value).replace("lab", "bal") == str(absent.value)
    assert create_repository(hub.reg, hub["writeer"], "lab/new").name == "lab/new"


def add_tensor(reg: Registry, data: bytes, file_sha256: str) -> bytes:
    """Add a tensor row to a pushed file, as ingest does."""
    name = hashlib.blake2b(data, digest_size=32).digest()
    with reg.db.write() as session:
        file = session.query(File).where(File.sha256 == file_sha256).one()
        tensor = Tensor(domain_id=file.domain_id, hash=name, size=len(data))
        session.add(tensor)
        session.flush()
        session.add(FileTensor(file_id=file.id, tensor_id=tensor.id))
    return name


def known(hub: Hub, who: str, repository: str, tensor: bytes) -> bool:
    with hub.reg.db.read() as session:
        row = load_repository(session, hub["root"], f"lab/{repository}")
        return tensor in readable_tensors(session, hub[who], row, [tensor])


def test_a_tensor_is_known_where_a_readable_file_of_a_shared_domain_has_it(hub: Hub) -> None:
    admin = hub["adminer"]
    assert admin is not None
    push(hub.reg, admin, "lab/public", {"a.bin": b"public"})
    push(hub.reg, admin, "lab/private", {"a.bin": b"private"})
    public = add_tensor(hub.reg, b"public tensor", sha256_of(b"public"))
    private = add_tensor(hub.reg, b"private tensor", sha256_of(b"private"))
    assert known(hub, "writeer", "private", private)
    assert known(hub, "writeer", "private", public)
    assert known(hub, "stranger", "public", public)
    # A public repository never refers to private data, not even its owner's.
    assert not known(hub, "adminer", "public", private)
    assert not known(hub, "stranger", "private", private)
    with hub.reg.db.read() as session:
        row = load_repository(session, admin, "lab/private")
        many = [private, public, bytes(32), *(bytes([1, n // 256, n % 256]) for n in range(6000))]
        assert set(readable_tensors(session, admin, row, many)) == {private, public}


def test_a_tensor_of_a_deleted_repository_is_not_known_any_more(hub: Hub) -> None:
    admin = hub["adminer"]
    assert admin is not None
    push(hub.reg, admin, "lab/public", {"a.bin": b"public"})
    tensor = add_tensor(hub.reg, b"public tensor", sha256_of(b"public"))
    assert known(hub, "stranger", "private", tensor)
    delete_repository(hub.reg, admin, "lab/public")
    assert not known(hub, "stranger", "private", tensor)


def test_a_held_tensor_is_known_to_its_holder_for_that_repository_until_it_expires(
    hub: Hub,
) -> None:
    admin, writer = hub["adminer"], hub["writeer"]
    assert admin is not None
    assert writer is not None
    push(hub.reg, admin, "lab/public", {"a.bin": b"public"})
    push(hub.reg, admin, "lab/keeper", {"b.bin": b"other"})
    tensor = add_tensor(hub.reg, b"public tensor", sha256_of(b"public"))
    with hub.reg.db.write() as session:
        row = session.query(Tensor).one()
        hold = Hold(
            tensor_id=row.id,
            user_id=writer.user_id,
            repository_id=load_repository(session, writer, "lab/keeper").id,
            expires_at=utc_now() + timedelta(hours=1),
        )
        session.add(hold)
    delete_repository(hub.reg, admin, "lab/public")
    assert known(hub, "writeer", "keeper", tensor)
    assert not known(hub, "writeer", "private", tensor)
    assert not known(hub, "adminer", "keeper", tensor)
    with hub.reg.db.write() as session:
        session.get_one(Hold, hold.id).expires_at = utc_now()
    assert not known(hub, "writeer", "keeper", tensor)


@pytest.mark.parametrize("owner", ["lab/private", "lab/public"])
def test_a_hash_of_somebody_else_commits_only_where_the_file_may_be_read(
    hub: Hub, owner: str
) -> None:
    admin, stranger = hub["adminer"], hub["stranger"]
    assert admin is not None
    push(hub.reg, admin, owner, {"weights.bin": b"the weights"})
    create_repository(hub.reg, stranger, "stranger/copy")
    add = AddFile("stolen.bin", sha256_of(b"the weights"), len(b"the weights"))
    if owner == "lab/public":
        assert commit(hub.reg, stranger, "stranger/copy", "main", [add]).changed
        return
    absent = AddFile("stolen.bin", sha256_of(b"never sent"), 10)
    messages = []
    for operation in (add, absent):
        with pytest.raises(UploadNotFound) as raised:
            commit(hub.reg, stranger, "stranger/copy", "main", [operation])
        messages.append(str(raised.value).replace(operation.sha256, "?"))
    assert messages[0] == messages[1]
