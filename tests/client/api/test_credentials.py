"""The hub and token come from arguments, the environment or `login`'s file."""

import stat
from pathlib import Path

import pytest

from deltahub.client.api.credentials import (
    DEFAULT_URL,
    Credentials,
    credentials_path,
    find_credentials,
    save_credentials,
)
from deltahub.client.errors import InvalidArgument
from deltahub.registry.settings import Settings


def test_without_anything_it_is_the_hub_that_serve_starts_here() -> None:
    assert find_credentials() == Credentials(DEFAULT_URL, None)
    fields = Settings.model_fields
    assert DEFAULT_URL == f"http://{fields['host'].default}:{fields['port'].default}"


def test_what_was_stored_can_be_read_by_its_owner_alone(home: Path) -> None:
    path = save_credentials("http://hub:1/", "dh_a\n")
    assert path == credentials_path() == home / ".config" / "deltahub" / "credentials.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert find_credentials() == Credentials("http://hub:1", "dh_a")
    assert [each.name for each in path.parent.iterdir()] == ["credentials.json"]


def test_a_token_goes_only_to_the_hub_that_it_was_stored_for() -> None:
    save_credentials("http://one", "dh_1")
    save_credentials("http://two", "dh_2")
    assert find_credentials() == Credentials("http://two", "dh_2")
    assert find_credentials("http://one/") == Credentials("http://one", "dh_1")
    assert find_credentials("http://three") == Credentials("http://three", None)


def test_arguments_win_over_the_environment_and_that_over_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    save_credentials("http://file", "dh_file")
    monkeypatch.setenv("DELTAHUB_URL", "environment:80")
    monkeypatch.setenv("DELTAHUB_TOKEN", "dh_environment")
    assert find_credentials() == Credentials("http://environment:80", "dh_environment")
    assert find_credentials("http://a", "dh_a") == Credentials("http://a", "dh_a")


def test_a_damaged_file_says_what_to_do() -> None:
    path = save_credentials("http://one", "dh_1")
    path.write_text("{")
    with pytest.raises(InvalidArgument, match="deltahub login"):
        find_credentials()


@pytest.mark.parametrize("text", ["{bad", "[]", '{"default": 5}', '{"hubs": {"http://a": 5}}'])
def test_a_damaged_file_is_not_looked_at_where_all_is_said_and_login_replaces_it(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_credentials("http://one", "dh_1")
    path.write_text(text)
    with pytest.raises(InvalidArgument, match="deltahub login"):
        find_credentials("http://one")
    assert find_credentials("http://a", "dh_a") == Credentials("http://a", "dh_a")
    monkeypatch.setenv("DELTAHUB_TOKEN", "dh_environment")
    assert find_credentials("http://a") == Credentials("http://a", "dh_environment")
    monkeypatch.delenv("DELTAHUB_TOKEN")
    save_credentials("http://two", "dh_2")
    assert find_credentials() == Credentials("http://two", "dh_2")
