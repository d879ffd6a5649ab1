"""Users, tokens, organizations, the first administrator, and `deltahub user`."""

import json
import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import select, update

from deltahub.registry import Registry, Settings
from deltahub.registry.access import audit, bootstrap, organizations, tokens, users
from deltahub.registry.commands.user import user as user_command
from deltahub.registry.db.models import Token, utc_now
from deltahub.registry.errors import InvalidName, InvalidRequest, NameTaken, NotFound, Unauthorized
from support.registry.opened import opened_registry


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as reg:
        yield reg


def test_a_token_names_its_user_and_scope(reg: Registry) -> None:
    users.create_user(reg, "alice", is_admin=True)
    caller = tokens.authenticate(reg, tokens.create_token(reg, "alice", "write"))
    assert (caller.name, caller.is_admin, caller.scope) == ("alice", True, "write")
    assert not caller.is_superuser


def test_only_the_hash_of_a_token_is_kept(reg: Registry) -> None:
    users.create_user(reg, "alice")
    secret = tokens.create_token(reg, "alice", "read")
    # As clients in JavaScript and secret scanners know tokens.
    assert re.fullmatch(r"hf_[A-Za-z]{34}", secret)
    for file in reg.data_dir.glob("deltahub.sqlite3*"):
        assert secret.encode() not in file.read_bytes()


def test_a_token_of_an_older_release_stays_good(reg: Registry) -> None:
    users.create_user(reg, "alice")
    tokens.create_token(reg, "alice", "read")
    old = "dh_" + "x" * 43
    with reg.db.write() as session:  # as the release before stored it
        session.execute(update(Token).values(hash=sha256(old.encode()).hexdigest()))
    assert tokens.authenticate(reg, old).name == "alice"


def test_an_unknown_token_is_refused(reg: Registry) -> None:
    for secret in ("", "dh_", "dh_" + "x" * 43, "hf_something", "\udcff", "x" * 100_000):
        with pytest.raises(Unauthorized):
            tokens.authenticate(reg, secret)


def test_a_revoked_token_is_refused_at_once(reg: Registry) -> None:
    users.create_user(reg, "alice")
    secret = tokens.create_token(reg, "alice", "read", "laptop")
    (info,) = tokens.list_tokens(reg, "alice")
    assert (info.label, info.expires_at) == ("laptop", None)
    tokens.revoke_token(reg, info.id)
    with pytest.raises(Unauthorized):
        tokens.authenticate(reg, secret)
    with pytest.raises(NotFound):
        tokens.revoke_token(reg, info.id)


def test_an_expired_token_is_refused_and_says_since_when(reg: Registry) -> None:
    users.create_user(reg, "alice")
    secret = tokens.create_token(reg, "alice", "read", ttl_s=60)
    assert tokens.authenticate(reg, secret).name == "alice"
    with reg.db.write() as session:
        session.execute(update(Token).values(expires_at=utc_now()))
    with pytest.raises(Unauthorized, match=r"alice expired at \d{4}-"):
        tokens.authenticate(reg, secret)


@pytest.mark.parametrize(
    "name", ["", ".hidden", "-dash", "a/b", "a b", "ä", "a\n", "x" * 97, "a..b", "a.git", "a\0"]
)
def test_a_name_that_cannot_be_one_is_refused_briefly(reg: Registry, name: str) -> None:
    with pytest.raises(InvalidName) as raised:
        users.create_user(reg, name * 100)
    assert len(str(raised.value)) < 500
    with pytest.raises(InvalidName):
        organizations.create_organization(reg, name)


def test_users_and_organizations_share_their_names(reg: Registry) -> None:
    users.create_user(reg, "alice")
    organizations.create_organization(reg, "lab")
    for name in ("alice", "lab"):
        with pytest.raises(NameTaken, match=name):
            users.create_user(reg, name)
        with pytest.raises(NameTaken, match=name):
            organizations.create_organization(reg, name)


def test_names_that_differ_only_in_case_are_refused(reg: Registry) -> None:
    users.create_user(reg, "alice")
    organizations.create_organization(reg, "Lab")
    for name, taken in (("ALICE", "alice"), ("lab", "Lab")):
        with pytest.raises(NameTaken, match=f"'{name}' differs only in .* case from '{taken}'"):
            users.create_user(reg, name)
        with pytest.raises(NameTaken, match="case"):
            organizations.create_organization(reg, name)
    users.create_user(reg, "Admin")
    assert bootstrap.bootstrap_admin(reg) is not None
    assert [user.name for user in users.list_users(reg)] == ["Admin", "admin-2", "alice"]


def test_scope_admin_is_for_administrators(reg: Registry) -> None:
    users.create_user(reg, "bob")
    with pytest.raises(InvalidRequest, match="bob is no administrator"):
        tokens.create_token(reg, "bob", "admin")
    assert tokens.list_tokens(reg) == []


def test_a_member_can_be_removed(reg: Registry) -> None:
    organizations.create_organization(reg, "lab")
    organizations.create_organization(reg, "empty")
    for name in ("bob", "alice"):
        users.create_user(reg, name)
        organizations.add_member(reg, "lab", name, "read")
    organizations.remove_member(reg, "lab", "bob")
    found = {each.name: dict(each.members) for each in organizations.list_organizations(reg)}
    assert found == {"empty": {}, "lab": {"alice": "read"}}
    for organization in ("lab", "nope", "alice"):
        with pytest.raises(NotFound, match="user org list"):
            organizations.remove_member(reg, organization, "bob")


def test_a_user_belongs_to_their_own_namespace_and_to_organizations(reg: Registry) -> None:
    users.create_user(reg, "alice")
    organizations.create_organization(reg, "lab")
    caller = tokens.authenticate(reg, tokens.create_token(reg, "alice", "read"))
    assert organizations.namespaces_of(reg, caller) == {"alice": "admin"}
    organizations.add_member(reg, "lab", "alice", "read")
    organizations.add_member(reg, "lab", "alice", "write")
    assert organizations.namespaces_of(reg, caller) == {"alice": "admin", "lab": "write"}


def test_membership_needs_an_organization_a_user_and_a_role_that_exist(reg: Registry) -> None:
    users.create_user(reg, "alice")
    organizations.create_organization(reg, "lab")
    with pytest.raises(NotFound, match="organization"):
        organizations.add_member(reg, "alice", "alice", "read")
    with pytest.raises(NotFound, match="nobody"):
        organizations.add_member(reg, "lab", "nobody", "read")
    with pytest.raises(InvalidRequest, match="owner"):
        organizations.add_member(reg, "lab", "alice", "owner")  # type: ignore[arg-type]  # on purpose


def test_the_first_start_makes_an_administrator_once(reg: Registry) -> None:
    secret = bootstrap.bootstrap_admin(reg)
    assert secret is not None
    assert tokens.authenticate(reg, secret).is_superuser
    assert bootstrap.bootstrap_admin(reg) is None


def test_a_hub_with_an_administrator_makes_no_other_and_shows_no_token(reg: Registry) -> None:
    users.create_user(reg, "alice", is_admin=True)
    assert bootstrap.bootstrap_admin(reg) is None


def test_a_hub_whose_users_administer_nothing_gets_an_administrator(reg: Registry) -> None:
    for name in ("alice", "admin"):
        users.create_user(reg, name)
    organizations.create_organization(reg, "admin-2")
    secret = bootstrap.bootstrap_admin(reg)
    assert secret is not None
    made = tokens.authenticate(reg, secret)
    assert (made.name, made.is_superuser) == ("admin-3", True)
    assert {user.name: user.is_admin for user in users.list_users(reg)}["admin"] is False
    assert bootstrap.bootstrap_admin(reg) is None


def test_what_is_done_to_users_is_in_the_audit_log(reg: Registry) -> None:
    users.create_user(reg, "alice")
    tokens.create_token(reg, "alice", "read")
    tokens.revoke_token(reg, 1)
    with reg.db.read() as session:
        actions = [(event.action, event.target) for event in audit.latest(session)]
        assert session.scalars(select(Token)).all() == []
    assert actions == [
        ("token.revoke", "alice"),
        ("token.create", "alice"),
        ("user.create", "alice"),
    ]


class Shell:
    """`deltahub user ...` on one data folder."""

    def __init__(self, data_dir: Path, *, is_new: bool = True) -> None:
        if is_new:
            Registry.open(Settings(data_dir=data_dir)).close()
        self.env = {"DELTAHUB_DATA_DIR": str(data_dir)}

    def run(self, *arguments: str) -> str:
        result = CliRunner(env=self.env).invoke(user_command, arguments)
        assert result.exit_code == 0, result.output
        return result.output

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json"))

    def refused(self, *arguments: str, status: int = 1) -> str:
        result = CliRunner(env=self.env).invoke(user_command, arguments)
        assert result.exit_code == status, result.output
        return result.output


def test_the_command_line_manages_users_tokens_and_organizations(tmp_path: Path) -> None:
    shell = Shell(tmp_path / "data")
    assert shell.json("add", "alice") == {"name": "alice", "is_admin": False}
    assert "made user root" in shell.run("add", "root", "--admin")
    assert [row["name"] for row in shell.json("list")["items"]] == ["alice", "root"]
    assert "root  (admin)" in shell.run("list")
    made = shell.json("token", "create", "alice", "--scope", "read", "--ttl-days", "0.5")
    secret = shell.run("token", "create", "root", "--scope", "admin", "--label", "ci").strip()
    first, second = shell.json("token", "list")["items"]
    assert (first["user"], first["scope"], second["label"]) == ("alice", "read", "ci")
    assert made["token"] not in shell.run("token", "list", "alice")
    assert shell.json("org", "add", "lab") == {"name": "lab"}
    assert shell.json("org", "member", "lab", "alice", "--role", "admin")["role"] == "admin"
    members = [{"user": "alice", "role": "admin"}]
    assert shell.json("org", "list") == {"items": [{"name": "lab", "members": members}]}
    assert shell.run("org", "list") == "lab: alice (admin)\n"
    with opened_registry(tmp_path) as reg:
        assert tokens.authenticate(reg, secret).is_superuser
        alice = tokens.authenticate(reg, made["token"])
        assert organizations.namespaces_of(reg, alice) == {"alice": "admin", "lab": "admin"}
    shell.run("token", "revoke", str(first["id"]))
    with opened_registry(tmp_path) as reg, pytest.raises(Unauthorized):
        tokens.authenticate(reg, made["token"])


def test_the_command_line_says_what_is_refused(tmp_path: Path) -> None:
    shell = Shell(tmp_path / "data")
    assert "no user 'bob'" in shell.refused("token", "create", "bob", status=3)
    assert "`deltahub user token create bob`" in shell.run("add", "bob")
    assert "'bob' is the name of a user" in shell.refused("add", "bob")
    assert "there is no token 7" in shell.refused("token", "revoke", "7", status=3)
    assert "user org add" in shell.refused("org", "member", "nope", "bob", status=3)
    assert "1 to 96 letters" in shell.refused("add", "Bad Name!", status=2)
    said = shell.refused("token", "create", "bob", "--scope", "admin", status=2)
    assert "bob is no administrator" in said
    assert shell.run("org", "list") == "there are no organizations\n"
    shell.run("org", "add", "lab")
    assert shell.run("org", "list") == "lab: no members\n"
    shell.run("org", "member", "lab", "bob")
    assert "no member" in shell.run("org", "remove", "lab", "bob")
    assert "no member" in shell.refused("org", "remove", "lab", "bob", status=3)


def test_a_data_folder_can_be_named_on_the_command_line(tmp_path: Path) -> None:
    shell = Shell(tmp_path / "unused", is_new=False)
    Shell(tmp_path / "data")
    shell.run("add", "alice", "--data-dir", str(tmp_path / "data"))
    assert not (tmp_path / "unused").exists()
    assert shell.json("list", "--data-dir", str(tmp_path / "data"))["items"][0]["name"] == "alice"


@pytest.mark.parametrize("arguments", [("add", "alice"), ("list",), ("token", "list")])
def test_a_folder_without_a_hub_is_refused_and_left_alone(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "data").mkdir()
    said = Shell(tmp_path / "data", is_new=False).refused(*arguments)
    assert f"there is no hub in the data folder {tmp_path / 'data'}" in said
    assert "--data-dir" in said
    assert "DELTAHUB_DATA_DIR" in said
    assert "deltahub serve" in said
    assert list((tmp_path / "data").iterdir()) == []
