"""The first administrator of a new hub."""

import itertools

from sqlalchemy import exists, select

from deltahub.registry.access.tokens import add_token
from deltahub.registry.access.users import add_user, taken_by
from deltahub.registry.db.models import User
from deltahub.registry.registry import Registry


def bootstrap_admin(reg: Registry) -> str | None:
    """The token of a new administrator, or None if the hub has an administrator already.

    No other function returns this token. The user is called `admin`, or `admin-2` and so on: an
    existing user of that name does not become an administrator.
    """
    with reg.db.write() as session:
        if session.scalar(select(exists(select(User.id).where(User.is_admin)))):
            return None
        names = itertools.chain(["admin"], (f"admin-{i}" for i in itertools.count(2)))
        name = next(name for name in names if taken_by(session, name) is None)
        admin = add_user(session, name, is_admin=True)
        return add_token(session, admin, "admin", "first start", None)
