"""Keys for S3 that a command prints are those that the servers of several machines take."""

import pytest
from click.testing import CliRunner

from deltahub.registry import Registry
from deltahub.registry.access.keys.signing_key import fingerprint, signing_key
from deltahub.registry.commands.user import user
from deltahub.registry.data_folder import SERVE, SERVE_LOCK
from deltahub.registry.leases.locks import together
from support.registry.opened import caller


def test_a_key_of_other_servers_prints_nothing(
    reg: Registry, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller(reg, "bea")
    monkeypatch.setenv("DELTAHUB_DATABASE_URL", url)
    key = signing_key(reg.data_dir, None)
    for mark, status in ((fingerprint(bytes(32)), 2), (fingerprint(key), 0)):
        with together(reg, SERVE_LOCK, SERVE, {"signing_key": mark}, lambda: None):
            command = ["token", "s3", "1", "--data-dir", str(reg.data_dir)]
            done = CliRunner().invoke(user, command)
        assert done.exit_code == status, done.output
        assert ("sign with another key" in done.output) == bool(status)
