"""Prints the API's description: `python -m deltahub.server.openapi > docs/openapi.json`."""

import json
import tempfile
from pathlib import Path

from deltahub.registry.registry import Registry
from deltahub.registry.settings import Settings
from deltahub.server.app import create_app


def describe() -> str:
    """Return the OpenAPI document, as docs/openapi.json holds it."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Registry.open(Settings(data_dir=Path(folder) / "data")) as registry,
    ):
        return json.dumps(create_app(registry).openapi(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    print(describe(), end="")
