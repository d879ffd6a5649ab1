"""The hub's address and token: from arguments, the environment, or the file of `login`."""

import contextlib
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltahub.client.errors import InvalidArgument

DEFAULT_URL = "http://127.0.0.1:8377"


@dataclass(frozen=True)
class Credentials:
    url: str
    token: str | None


def credentials_path() -> Path:
    """~/.config/deltahub/credentials.json, or the same below XDG_CONFIG_HOME if that is set."""
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "deltahub" / "credentials.json"


def find_credentials(url: str | None = None, token: str | None = None) -> Credentials:
    """The hub's address and its token.

    A stored token goes only to the hub it was stored for, and DELTAHUB_TOKEN only to DELTAHUB_URL
    if that is set. InvalidArgument when the file is damaged and a value from it is needed.
    """
    configured = os.environ.get("DELTAHUB_URL")
    if not url or not configured or _normalized(url) == _normalized(configured):
        token = token or os.environ.get("DELTAHUB_TOKEN")
    url = url or configured
    if not url or token is None:
        stored = _load()
        url = url or stored.get("default") or DEFAULT_URL
        token = token or stored.get("hubs", {}).get(_normalized(url), {}).get("token")
    return Credentials(_normalized(url), token.strip() if token else None)


def is_damaged() -> bool:
    """Whether the file exists but is not one that `login` wrote."""
    try:
        _load()
    except InvalidArgument:
        return True
    return False


def save_credentials(url: str, token: str) -> Path:
    """Writes the token to a file that only its owner can read; this hub becomes the default.

    A damaged file is replaced.
    """
    hubs = {} if is_damaged() else dict(_load().get("hubs", {}))
    hubs[_normalized(url)] = {"token": token.strip()}
    path = credentials_path()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # mkstemp creates the file with mode 0600, before the token is in it.
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=".credentials-")
    try:
        with os.fdopen(fd, "w") as file:
            json.dump({"default": _normalized(url), "hubs": hubs}, file, indent=2)
            file.write("\n")
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    return path


def _normalized(url: str) -> str:
    return (url if "://" in url else f"http://{url}").rstrip("/")


def _load() -> dict[str, Any]:
    path = credentials_path()
    try:
        stored = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except ValueError as exc:
        raise InvalidArgument(f"{path} is damaged: run `deltahub login` again") from exc
    if not _is_valid(stored):
        raise InvalidArgument(f"{path} is damaged: run `deltahub login` again")
    return dict(stored)


def _is_valid(stored: Any) -> bool:
    if not isinstance(stored, dict) or not isinstance(stored.get("default", ""), str):
        return False
    hubs = stored.get("hubs", {})
    return isinstance(hubs, dict) and all(
        isinstance(hub, dict) and isinstance(hub.get("token", ""), str) for hub in hubs.values()
    )
