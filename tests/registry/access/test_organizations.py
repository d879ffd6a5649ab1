"""Organizations that users make and manage themselves."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deltahub.registry import Registry
from deltahub.registry.access import organizations, tokens, users
from deltahub.registry.access.caller import Caller
from deltahub.registry.errors import Conflict, Forbidden, InvalidRequest, NameTaken, NotFound
from support.registry.opened import opened_registry


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path, max_organizations=2) as reg:
        users.create_user(reg, "root", is_admin=True)
        for name in ("alice", "bob", "eve"):
            users.create_user(reg, name)
        organizations.create_own(reg, caller(reg, "alice"), "lab")
        yield reg


def caller(reg: Registry, name: str, scope: str = "write") -> Caller:
    return tokens.authenticate(reg, tokens.create_token(reg, name, scope))  # type: ignore[arg-type]


def members(reg: Registry) -> dict[str, str]:
    return dict(organizations.organization_of(reg, caller(reg, "root", "admin"), "lab").members)


def test_whoever_makes_an_organization_administers_it(reg: Registry) -> None:
    alice = caller(reg, "alice")
    organizations.give_role(reg, alice, "lab", "bob", "write")
    organizations.give_role(reg, alice, "lab", "bob", "read")
    assert members(reg) == {"alice": "admin", "bob": "read"}
    organizations.take_role(reg, alice, "lab", "bob")
    assert members(reg) == {"alice": "admin"}
    with pytest.raises(NameTaken):
        organizations.create_own(reg, alice, "bob")


def test_a_user_makes_as_many_as_the_hub_allows(reg: Registry) -> None:
    alice = caller(reg, "alice")
    organizations.create_own(reg, alice, "second")
    with pytest.raises(Forbidden, match="up to 2"):
        organizations.create_own(reg, alice, "third")
    for i in range(3):
        organizations.create_own(reg, caller(reg, "root", "admin"), f"more{i}")


def test_strangers_see_no_organization_and_members_may_not_change_it(reg: Registry) -> None:
    organizations.give_role(reg, caller(reg, "alice"), "lab", "bob", "write")
    eve, bob = caller(reg, "eve"), caller(reg, "bob")
    for name in ("lab", "nothing", "alice"):
        with pytest.raises(NotFound) as raised:
            organizations.organization_of(reg, eve, name)
        with pytest.raises(NotFound) as given:
            organizations.give_role(reg, eve, name, "eve", "admin")
        assert str(raised.value) == str(given.value)
        assert str(raised.value).replace(repr(name), "X") == (
            "there is no organization X, or you are no member of it"
        )
    with pytest.raises(NotFound):
        organizations.organization_of(reg, None, "lab")
    assert dict(organizations.organization_of(reg, bob, "lab").members) == members(reg)
    for act in (
        lambda: organizations.give_role(reg, bob, "lab", "bob", "admin"),
        lambda: organizations.take_role(reg, bob, "lab", "alice"),
        lambda: organizations.give_role(reg, caller(reg, "alice", "read"), "lab", "eve", "read"),
        lambda: organizations.take_role(reg, caller(reg, "bob", "read"), "lab", "bob"),
        lambda: organizations.create_own(reg, caller(reg, "eve", "read"), "mine"),
    ):
        with pytest.raises(Forbidden):
            act()


def test_members_leave_and_one_administrator_stays(reg: Registry) -> None:
    alice = caller(reg, "alice")
    organizations.give_role(reg, alice, "lab", "bob", "read")
    for act in (
        lambda: organizations.take_role(reg, alice, "lab", "alice"),
        lambda: organizations.give_role(reg, alice, "lab", "alice", "write"),
    ):
        with pytest.raises(Conflict, match="last administrator of lab"):
            act()
    organizations.take_role(reg, caller(reg, "bob"), "lab", "bob")
    assert members(reg) == {"alice": "admin"}
    organizations.take_role(reg, caller(reg, "root", "admin"), "lab", "alice")
    assert members(reg) == {}


def test_roles_and_users_must_exist(reg: Registry) -> None:
    alice = caller(reg, "alice")
    with pytest.raises(InvalidRequest):
        organizations.give_role(reg, alice, "lab", "bob", "owner")  # type: ignore[arg-type]
    with pytest.raises(NotFound, match="no user 'nobody'"):
        organizations.give_role(reg, alice, "lab", "nobody", "read")
    with pytest.raises(NotFound, match="no member"):
        organizations.take_role(reg, alice, "lab", "eve")
