"""Passwords and invitations: who gets in, and how guessing is slowed down."""

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select, update

from deltahub.registry import Registry
from deltahub.registry.access import accounts, audit, users
from deltahub.registry.access.caller import Caller
from deltahub.registry.access.login import invitations, passwords, sessions
from deltahub.registry.db.models import User, utc_now
from deltahub.registry.db.tables.logins import Invitation, Password
from deltahub.registry.errors import Conflict, Forbidden, InvalidRequest, NotFound, Unauthorized
from support.registry.opened import opened_registry

GOOD = "a sentence that nobody guesses"


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as reg:
        users.create_user(reg, "alice")
        accept(reg, "alice")
        yield reg


def accept(reg: Registry, name: str, password: str = GOOD) -> int:
    secret = invitations.invite(reg, None, name, by_shell=True)
    return invitations.accept(reg, secret, password)


def session_of(reg: Registry, user_id: int) -> tuple[str, Caller]:
    secret, _ = sessions.begin_session(reg, user_id, agent="", address="", how="password")
    caller = sessions.session_caller(reg, secret)
    assert caller is not None
    return secret, caller


def test_a_password_logs_in_and_only_its_argon2id_is_kept(reg: Registry) -> None:
    user_id = passwords.log_in(reg, "alice", GOOD)
    with reg.db.read() as session:
        assert session.get_one(User, user_id).name == "alice"
        kept = session.scalar(select(Password.hash))
    assert kept is not None
    assert kept.startswith("$argon2id$")
    for file in reg.data_dir.glob("deltahub.sqlite3*"):
        assert GOOD.encode() not in file.read_bytes()


def test_an_accent_is_one_letter_however_a_keyboard_writes_it(reg: Registry) -> None:
    accept(reg, "alice", "caf\u00e9 au lait")
    assert passwords.log_in(reg, "alice", "cafe\u0301 au lait")


def test_every_wrong_login_gets_the_same_sentence(reg: Registry) -> None:
    users.create_user(reg, "bob")  # has no password
    for name in ("alice", "nobody", "bob", "", "x" * 1000, "alice\0", "\udcff"):
        with pytest.raises(Unauthorized) as raised:
            passwords.log_in(reg, name, "wrong wrong wrong")
        assert str(raised.value) == passwords.WRONG


def test_after_five_failures_even_the_right_password_waits(reg: Registry) -> None:
    for _ in range(passwords.FREE_FAILURES):
        with pytest.raises(Unauthorized):
            passwords.log_in(reg, "alice", "wrong wrong wrong")
    with pytest.raises(Unauthorized, match="the name or the password is wrong; after five"):
        passwords.log_in(reg, "alice", GOOD)
    with reg.db.write() as session:
        # Attempts within the pause do not make it longer.
        assert session.scalar(select(Password.n_failures)) == passwords.FREE_FAILURES
        session.execute(update(Password).values(failed_at=utc_now() - passwords.FIRST_PAUSE))
    assert passwords.log_in(reg, "alice", GOOD)
    with reg.db.read() as session:
        assert session.scalar(select(Password.n_failures)) == 0
        assert "password.guessed" in [each.action for each in audit.latest(session)]


def test_pauses_grow_and_are_bounded() -> None:
    pauses = [passwords.pause_after(n) for n in range(30)]
    assert pauses[:5] == [timedelta(0)] * 5
    assert pauses[5] == passwords.FIRST_PAUSE
    assert pauses[6] == 2 * passwords.FIRST_PAUSE
    assert pauses == sorted(pauses)
    assert pauses[-1] == passwords.LONGEST_PAUSE


def test_guesses_that_come_at_once_count_like_those_that_come_one_by_one(reg: Registry) -> None:
    def guess() -> None:
        with pytest.raises(Unauthorized):
            passwords.log_in(reg, "alice", "wrong wrong wrong")

    threads = [threading.Thread(target=guess) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with reg.db.read() as session:
        assert session.scalar(select(Password.n_failures)) == passwords.FREE_FAILURES


def test_a_new_password_has_ten_characters_and_no_other_rule(reg: Registry) -> None:
    secret = invitations.invite(reg, None, "alice", by_shell=True)
    with pytest.raises(InvalidRequest, match="at least 10 characters"):
        invitations.accept(reg, secret, "123456789")
    assert invitations.accept(reg, secret, "1234567890")


def test_a_changed_password_needs_the_old_one_and_ends_other_sessions(reg: Registry) -> None:
    user_id = passwords.log_in(reg, "alice", GOOD)
    own, caller = session_of(reg, user_id)
    other, _ = session_of(reg, user_id)
    with pytest.raises(Forbidden, match="current password is wrong"):
        passwords.change_own(reg, caller, "wrong wrong wrong", "another good one")
    passwords.change_own(reg, caller, GOOD, "another good one")
    assert sessions.session_caller(reg, own) is not None
    assert sessions.session_caller(reg, other) is None
    assert passwords.log_in(reg, "alice", "another good one")
    with pytest.raises(Unauthorized):
        passwords.log_in(reg, "alice", GOOD)


def test_an_invitation_works_once(reg: Registry) -> None:
    secret = invitations.invite(reg, None, "alice", by_shell=True)
    assert invitations.invited_user(reg, secret) == "alice"
    invitations.accept(reg, secret, "another good one")
    for call in (
        lambda: invitations.accept(reg, secret, "a third good one"),
        lambda: invitations.invited_user(reg, secret),
    ):
        with pytest.raises(NotFound, match="has been used, or is older than seven days"):
            call()
    assert passwords.log_in(reg, "alice", "another good one")


def test_an_invitation_ends_after_seven_days_and_with_the_next_one(reg: Registry) -> None:
    first = invitations.invite(reg, None, "alice", by_shell=True)
    second = invitations.invite(reg, None, "alice", by_shell=True)
    with pytest.raises(NotFound):
        invitations.invited_user(reg, first)
    with reg.db.write() as session:
        (row,) = session.scalars(select(Invitation))
        assert timedelta(days=6.9) < row.expires_at - utc_now() <= timedelta(days=7)
        row.expires_at = utc_now()
    with pytest.raises(NotFound):
        invitations.accept(reg, second, GOOD)


def test_a_forgotten_password_is_replaced_and_all_sessions_end(reg: Registry) -> None:
    secret, _ = session_of(reg, passwords.log_in(reg, "alice", GOOD))
    for _ in range(passwords.FREE_FAILURES):
        with pytest.raises(Unauthorized):
            passwords.log_in(reg, "alice", "wrong wrong wrong")
    accept(reg, "alice", "another good one")
    assert sessions.session_caller(reg, secret) is None
    assert passwords.log_in(reg, "alice", "another good one")


def test_only_administrators_invite(reg: Registry) -> None:
    _, caller = session_of(reg, passwords.log_in(reg, "alice", GOOD))
    for who in (caller, None):
        with pytest.raises((Forbidden, Unauthorized)):
            invitations.invite(reg, who, "alice", by_shell=False)
        with pytest.raises((Forbidden, Unauthorized)):
            accounts.create_invited(reg, who, "eve", is_admin=True, by_shell=False)


def test_a_disabled_user_is_not_invited(reg: Registry) -> None:
    secret = invitations.invite(reg, None, "alice", by_shell=True)
    accounts.disable(reg, None, "alice", by_shell=True)
    with pytest.raises(NotFound):
        invitations.accept(reg, secret, GOOD)
    with pytest.raises(Conflict, match="disabled"):
        invitations.invite(reg, None, "alice", by_shell=True)
