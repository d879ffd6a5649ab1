"""Accounts that an operator disables or removes, sessions begun with tokens, and identities."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from deltahub.registry import Registry
from deltahub.registry.access import accounts, audit, organizations, tokens, users
from deltahub.registry.access.caller import Caller
from deltahub.registry.access.login import identities, sessions
from deltahub.registry.catalog import repositories
from deltahub.registry.commands.user import user as user_command
from deltahub.registry.errors import (
    Conflict,
    Forbidden,
    InvalidName,
    NameTaken,
    NotFound,
    Unauthorized,
)
from support.registry.opened import opened_registry

ISSUER = "https://id.example.com"


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as reg:
        users.create_user(reg, "root", is_admin=True)
        users.create_user(reg, "alice")
        yield reg


def caller_of(reg: Registry, name: str, scope: str = "write", ttl_s: int | None = None) -> Caller:
    secret = tokens.create_token(reg, name, scope, ttl_s=ttl_s)  # type: ignore[arg-type]
    return tokens.authenticate(reg, secret)


def begin(reg: Registry, caller: Caller, token_mark: str | None = None) -> str:
    secret, _ = sessions.begin_session(
        reg, caller.user_id, agent="a browser", address="::1", how="token", token_mark=token_mark
    )
    return secret


def test_a_disabled_user_can_do_nothing_until_enabled(reg: Registry) -> None:
    secret = tokens.create_token(reg, "alice", "write")
    caller = tokens.authenticate(reg, secret)
    session = begin(reg, caller)
    accounts.disable(reg, None, "alice", by_shell=True)
    with pytest.raises(Unauthorized, match="disabled"):
        tokens.authenticate(reg, secret)
    assert sessions.session_caller(reg, session) is None
    with pytest.raises(Unauthorized, match="disabled"):
        begin(reg, caller)
    accounts.enable(reg, None, "alice", by_shell=True)
    assert tokens.authenticate(reg, secret).name == "alice"
    assert sessions.session_caller(reg, session) is None


def test_a_removed_user_leaves_a_reserved_name(reg: Registry) -> None:
    secret = tokens.create_token(reg, "alice", "write")
    organizations.create_own(reg, tokens.authenticate(reg, secret), "lab")
    assert accounts.remove(reg, None, "alice", by_shell=True) == ["lab"]
    with pytest.raises(Unauthorized):
        tokens.authenticate(reg, secret)
    with pytest.raises(NotFound):
        accounts.disable(reg, None, "alice", by_shell=True)
    with pytest.raises(NameTaken):
        identities.log_in(reg, ISSUER, "1", "alice", creates=True)
    with pytest.raises(NameTaken):
        organizations.create_organization(reg, "alice")
    again = users.create_user(reg, "alice")
    assert list(organizations.namespaces_of(reg, caller_of(reg, "alice"))) == ["alice"]
    with reg.db.read() as session:
        actions = [(each.action, each.target) for each in audit.latest(session)]
    assert ("user.remove", "alice") in actions
    assert again.name == "alice"


def test_a_user_with_models_is_not_removed(reg: Registry) -> None:
    caller = caller_of(reg, "alice")
    for i in range(4):
        repositories.create_repository(reg, caller, f"alice/m{i}", private=True)
    with pytest.raises(Conflict, match=r"alice/m0, alice/m1, alice/m2 and 1 more: move them"):
        accounts.remove(reg, None, "alice", by_shell=True)
    assert [each.name for each in users.list_users(reg)] == ["alice", "root"]


def test_the_last_administrator_stays(reg: Registry) -> None:
    for act in (accounts.disable, accounts.remove):
        with pytest.raises(Conflict, match="last administrator"):
            act(reg, None, "root", by_shell=True)
    users.create_user(reg, "second", is_admin=True)
    accounts.disable(reg, None, "root", by_shell=True)
    with pytest.raises(Conflict, match="last administrator"):
        accounts.remove(reg, None, "second", by_shell=True)


def test_only_administrators_manage_users(reg: Registry) -> None:
    for caller in (caller_of(reg, "alice"), caller_of(reg, "root", "write"), None):
        for act in (accounts.disable, accounts.enable, accounts.remove):
            with pytest.raises((Forbidden, Unauthorized)):
                act(reg, caller, "alice", by_shell=False)
    accounts.disable(reg, caller_of(reg, "root", "admin"), "alice", by_shell=False)


def test_a_session_that_a_token_began_allows_what_the_token_does(reg: Registry) -> None:
    holder = caller_of(reg, "root", "read", ttl_s=60)
    secret, life = sessions.begin_session(
        reg, holder.user_id, agent="", address="", how="token", token_mark=holder.token_mark
    )
    caller = sessions.session_caller(reg, secret)
    assert caller is not None
    assert (caller.scope, caller.is_superuser) == ("read", False)
    assert life.total_seconds() <= 60
    tokens.revoke_token(reg, int(holder.token_mark.partition("-")[0]))
    assert sessions.session_caller(reg, secret) is None
    with reg.db.read() as session, pytest.raises(Unauthorized):
        sessions.caller_of_session_mark(session, caller.token_mark)


def test_a_token_makes_no_token_that_is_worth_more(reg: Registry) -> None:
    with pytest.raises(Forbidden):
        tokens.create_own(reg, caller_of(reg, "alice", "read"), "read")
    with pytest.raises(Forbidden):
        tokens.create_own(reg, caller_of(reg, "root", "write"), "admin")
    with pytest.raises(Forbidden):
        tokens.create_own(reg, caller_of(reg, "alice"), "admin")
    short = caller_of(reg, "alice", "write", ttl_s=60)
    tokens.create_own(reg, short, "write", "made by a short one", 3600)
    of_short = sessions.session_caller(reg, begin(reg, short, short.token_mark))
    assert of_short is not None
    tokens.create_own(reg, of_short, "write", "made in its session")
    made = {each.label: each for each in tokens.list_tokens(reg, "alice")}
    for label in ("made by a short one", "made in its session"):
        end = made[label].expires_at
        assert end is not None
        assert (end - made[label].created_at).total_seconds() <= 60


def test_only_own_tokens_are_revoked(reg: Registry) -> None:
    caller_of(reg, "root")
    (of_root,) = tokens.list_tokens(reg, "root")
    alice = caller_of(reg, "alice")
    with pytest.raises(NotFound, match="you have no token"):
        tokens.revoke_own(reg, alice, of_root.id)
    (own,) = tokens.list_tokens(reg, "alice")
    tokens.revoke_own(reg, alice, own.id)
    assert tokens.list_tokens(reg, "alice") == []


def test_an_identity_is_issuer_and_subject(reg: Registry) -> None:
    first = identities.log_in(reg, ISSUER, "1", "Bob B. <3@example.com", creates=True)
    assert identities.log_in(reg, ISSUER, "1", "renamed", creates=False) == first
    with pytest.raises(NameTaken, match="belongs to somebody else"):
        identities.log_in(reg, "https://other.example.com", "1", "bob-b.-3", creates=True)
    with pytest.raises(Forbidden, match="no user of this hub"):
        identities.log_in(reg, ISSUER, "2", "carol", creates=False)
    assert [each.name for each in users.list_users(reg)] == ["Bob-B.-3", "alice", "root"]


@pytest.mark.parametrize(
    ("wished", "name"),
    [
        ("bob", "bob"), ("bob@example.com", "bob"), ("B\u00f6b O'Neil", "B-b-O-Neil"),
        ("...x..y", "x.y"), ("a.git", "a"), ("a.git.lock", "a"), ("  spaced ", "spaced"),
        ("x" * 200, "x" * 96), ("a/../b", "a-.-b"),
    ],
)  # fmt: skip
def test_a_name_of_a_provider_becomes_one_of_the_hub(wished: str, name: str) -> None:
    assert identities.clean_name(wished) == name


@pytest.mark.parametrize("wished", ["", "@", "\u4e2d\u6587", "...", "@example.com", "\0"])
def test_a_name_of_which_nothing_is_left_is_refused(wished: str) -> None:
    with pytest.raises(InvalidName, match="ask the hub's administrator"):
        identities.clean_name(wished)


def test_a_word_of_the_hubs_addresses_names_nobody(reg: Registry) -> None:
    with pytest.raises(InvalidName):
        identities.log_in(reg, ISSUER, "1", "settings", creates=True)


def test_a_user_connects_an_identity_that_nobody_else_has(reg: Registry) -> None:
    alice = caller_of(reg, "alice")
    identities.connect(reg, alice, ISSUER, "1")
    assert identities.log_in(reg, ISSUER, "1", "alice", creates=False) == alice.user_id
    with pytest.raises(Conflict):
        identities.connect(reg, caller_of(reg, "root"), ISSUER, "1")
    identities.disconnect(reg, caller_of(reg, "root"), ISSUER, "1")
    assert [each.subject for each in identities.list_own(reg, alice)] == ["1"]
    identities.disconnect(reg, alice, ISSUER, "1")
    assert identities.list_own(reg, alice) == []


def test_commands_invite_disable_enable_and_remove(reg: Registry) -> None:
    def run(*words: str, code: int = 0) -> str:
        found = CliRunner().invoke(
            user_command, [*words, "--data-dir", str(reg.data_dir)], env={"DELTAHUB_URL": ""}
        )
        assert found.exit_code == code, found.output
        return found.output

    made = json.loads(run("add", "carol", "--invite", "--url", "https://hub.example/", "--json"))
    assert made["link"].startswith("https://hub.example/-/invitation/dh_invite_")
    assert "http://127.0.0.1:8377/-/invitation/dh_invite_" in run("invite", "carol")
    run("disable", "carol")
    assert "carol  (disabled)" in run("list")
    assert "disabled" in run("invite", "carol", code=1)
    run("enable", "carol")
    assert "removed carol" in run("remove", "carol")
    run("remove", "carol", code=3)
