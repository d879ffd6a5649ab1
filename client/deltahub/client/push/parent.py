"""The model that a folder was made from, as its config files name it."""

import json
import re
from pathlib import Path

from deltahub.client.names import is_repository_name

_SNAPSHOT = re.compile(r"models--([^/]+?)--([^/]+)/snapshots/([0-9a-f]{40})(?:/|$)")
_KEYS = {"config.json": "_name_or_path", "adapter_config.json": "base_model_name_or_path"}
_MAX_CONFIG = 1 << 20


def find_parent(folder: Path) -> tuple[str, str] | None:
    """(repository, revision) that the model was loaded from; None if no file names it.

    It is a hint for the choice of a base, and not declared to the hub.
    """
    for file_name, key in _KEYS.items():
        path = folder / file_name
        if not path.is_file() or path.stat().st_size > _MAX_CONFIG:
            continue
        try:
            config = json.loads(path.read_bytes())
        except (ValueError, RecursionError):  # the folder may come from anybody
            continue
        value = config.get(key) if isinstance(config, dict) else None
        if not isinstance(value, str):
            continue
        snapshot = _SNAPSHOT.search(value)
        if snapshot and is_repository_name(f"{snapshot[1]}/{snapshot[2]}"):
            return f"{snapshot[1]}/{snapshot[2]}", snapshot[3]
        if is_repository_name(value):
            return value, "main"
    return None
