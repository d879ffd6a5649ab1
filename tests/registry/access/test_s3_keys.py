"""Keys of S3 clients come of a token's hash and the hub's key, and of nothing else."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from deltahub.registry import Registry
from deltahub.registry.access import audit, tokens
from deltahub.registry.access.keys.s3_keys import find_key_holder, keys_of_token, own_keys
from deltahub.registry.access.keys.signing_key import KEY_FILE, signing_key
from deltahub.registry.commands.user import user
from deltahub.registry.errors import Forbidden, InvalidRequest, NotFound, TokenExpired
from support.registry.opened import caller, end_token, opened_registry

KEY = bytes(range(32))


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as registry:
        yield registry


def test_the_operator_and_the_holder_get_the_same_keys(reg: Registry) -> None:
    ann = caller(reg, "ann", scope="read")
    (token,) = tokens.list_tokens(reg, "ann")
    keys = own_keys(reg, ann, KEY)
    assert keys == keys_of_token(reg, token.id, KEY)
    assert keys.secret_access_key != own_keys(reg, ann, bytes(32)).secret_access_key
    assert keys.secret_access_key not in keys.access_key_id
    holder = find_key_holder(reg, keys.access_key_id)
    assert holder is not None
    assert (holder.keys(KEY), holder.caller()) == (keys, ann)
    with reg.db.read() as session:
        assert [each.action for each in audit.latest(session, 1)] == ["token.s3_keys"]


@pytest.mark.parametrize(
    "other", ["DHS3", "", "x", "DHS3" + "0" * 17, "DHS3" + "F" * 16 + "9" * 19]
)
def test_other_ids_are_nobodys(reg: Registry, other: str) -> None:
    caller(reg, "ann")
    assert find_key_holder(reg, other) is None


def test_keys_end_with_their_token(reg: Registry) -> None:
    ann = caller(reg, "ann")
    (token,) = tokens.list_tokens(reg, "ann")
    keys = own_keys(reg, ann, KEY)
    end_token(reg, "ann", "expired")
    holder = find_key_holder(reg, keys.access_key_id)
    assert holder is not None
    with pytest.raises(TokenExpired):
        holder.caller()
    with pytest.raises(InvalidRequest, match="opens nothing"):
        keys_of_token(reg, token.id, KEY)
    end_token(reg, "ann", "revoked")
    assert find_key_holder(reg, keys.access_key_id) is None
    with pytest.raises(NotFound):
        keys_of_token(reg, token.id, KEY)
    with pytest.raises(Forbidden):
        own_keys(reg, ann, KEY)


def test_the_command_needs_the_key_of_the_servers(
    reg: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann = caller(reg, "ann")

    def ask(*options: str) -> tuple[int, str]:
        command = ["token", "s3", "1", "--data-dir", str(reg.data_dir), *options]
        done = CliRunner().invoke(user, command)
        return done.exit_code, done.output

    # Of a hub whose servers have theirs in a setting, or that never ran.
    status, output = ask()
    assert status != 0
    assert f"has no {KEY_FILE}" in output
    assert not (reg.data_dir / KEY_FILE).exists()
    key = signing_key(reg.data_dir, None)
    keys = own_keys(reg, ann, key)
    assert ask() == (
        0,
        f"AWS_ACCESS_KEY_ID={keys.access_key_id}\nAWS_SECRET_ACCESS_KEY={keys.secret_access_key}\n",
    )
    monkeypatch.setenv("DELTAHUB_SERVER_SIGNING_KEY", "a secret of 32 characters or more")
    status, output = ask("--json")
    assert status == 0
    assert json.loads(output)["access_key_id"] == keys.access_key_id
    assert json.loads(output)["secret_access_key"] != keys.secret_access_key
    monkeypatch.setenv("DELTAHUB_SERVER_SIGNING_KEY", "short")
    assert ask()[0] != 0
