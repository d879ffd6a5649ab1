"""`deltahub token`: a user's own tokens, and the same by the SDK."""

import json

import pytest
from click.testing import CliRunner, Result

from deltahub.client import Hub
from deltahub.client.cli.commands import group
from deltahub.client.errors import Unauthorized
from support.service.hub import RunningHub


def run(hub: RunningHub, token: str, *words: str) -> Result:
    return CliRunner().invoke(
        group, ["token", *words], env={"DELTAHUB_URL": hub.url, "DELTAHUB_TOKEN": token}
    )


def test_a_token_is_made_listed_and_revoked(hub_server: RunningHub) -> None:
    token = hub_server.user("token-owner")
    made = run(hub_server, token, "create", "cluster", "--ttl-days", "7")
    secret = made.stdout.strip()
    assert secret.startswith("hf_")
    listed = json.loads(run(hub_server, token, "ls", "--json").stdout)["items"]
    assert [(each["label"], each["scope"]) for each in listed] == [
        ("", "write"),
        ("cluster", "read"),
    ]
    assert "never expires" in run(hub_server, secret, "ls").stdout
    number = str(listed[1]["id"])
    assert run(hub_server, secret, "revoke", number).exit_code == 4
    assert run(hub_server, token, "revoke", number).exit_code == 0
    assert run(hub_server, token, "revoke", number).exit_code == 3
    assert run(hub_server, secret, "ls").exit_code == 4


def test_the_sdk_does_the_same(hub_server: RunningHub) -> None:
    with Hub(hub_server.url, hub_server.user("sdk-owner")) as hub:
        secret = hub.create_token("from the SDK", scope="write", ttl_s=60)
        made = next(each for each in hub.tokens() if each.label)
        assert (made.scope, made.expires_at is None) == ("write", False)
        with Hub(hub_server.url, secret) as other:
            assert other.whoami().name == "sdk-owner"
            hub.revoke_token(made.id)
            with pytest.raises(Unauthorized):
                other.whoami()
