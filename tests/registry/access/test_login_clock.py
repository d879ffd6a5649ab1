"""What was written while the clock of a machine was ahead keeps nobody in, and nobody out."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import update

from deltahub.registry import Registry
from deltahub.registry.access.accounts import create_invited
from deltahub.registry.access.login import invitations, passwords, sessions
from deltahub.registry.db.columns import Base
from deltahub.registry.db.models import utc_now
from deltahub.registry.db.tables.logins import Invitation, Password, WebSession
from deltahub.registry.errors import NotFound, Unauthorized
from support.registry.opened import opened_registry

AHEAD = timedelta(days=3650)
PASSWORD = "a password of several words"


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as registry:
        yield registry


@pytest.fixture
def user_id(reg: Registry) -> int:
    secret = create_invited(reg, None, "ann", is_admin=False, by_shell=True)
    return invitations.accept(reg, secret, PASSWORD)


def write(reg: Registry, model: type[Base], **values: object) -> None:
    with reg.db.write() as session:
        session.execute(update(model).values(**values))


def test_a_session_of_the_future_is_not_valid(reg: Registry, user_id: int) -> None:
    secret, life = sessions.begin_session(reg, user_id, agent="", address="", how="password")
    assert sessions.session_caller(reg, secret) is not None
    ahead = utc_now() + AHEAD
    write(reg, WebSession, created_at=ahead, expires_at=ahead + life)
    assert sessions.session_caller(reg, secret) is None


def test_a_pause_of_the_future_keeps_nobody_out(reg: Registry, user_id: int) -> None:
    write(reg, Password, n_failures=20, failed_at=utc_now())
    with pytest.raises(Unauthorized):
        passwords.log_in(reg, "ann", PASSWORD)
    write(reg, Password, n_failures=20, failed_at=utc_now() + AHEAD)
    assert passwords.log_in(reg, "ann", PASSWORD) == user_id


def test_an_invitation_of_the_future_lets_nobody_in(reg: Registry, user_id: int) -> None:
    secret = invitations.invite(reg, None, "ann", by_shell=True)
    assert invitations.invited_user(reg, secret) == "ann"
    ahead = utc_now() + AHEAD
    write(reg, Invitation, created_at=ahead, expires_at=ahead + timedelta(days=7))
    with pytest.raises(NotFound):
        invitations.invited_user(reg, secret)
