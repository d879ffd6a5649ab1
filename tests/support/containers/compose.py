"""Reads docker-compose.yml as an engine does: variables filled in, one service at a time."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from support.containers.sandbox import Container


@dataclass(frozen=True)
class Service:
    """One service of a compose file."""

    name: str
    values: Mapping[str, Any]
    folder: Path  # of the file, from which env_file is read

    @property
    def environment(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for name in self.values.get("env_file", []):
            for line in (self.folder / name).read_text().splitlines():
                key, _, value = line.partition("=")
                found[key] = value
        return {**found, **self.values.get("environment", {})}

    @property
    def command(self) -> list[str]:
        return [*self.values.get("entrypoint", []), *self.values.get("command", [])]

    @property
    def healthcheck(self) -> list[str]:
        word, *command = self.values["healthcheck"]["test"]
        assert word == "CMD", "a health check in shell form needs a shell"
        return list(command)

    @property
    def stop_grace_s(self) -> int:
        return seconds(self.values["stop_grace_period"])

    def container(
        self, root: Path, volumes: Mapping[str, Path], environment: Mapping[str, str], **more: Any
    ) -> Container:
        """What the service runs in. volumes: by name; environment: the image's own."""
        mounted = [volume.split(":") for volume in self.values.get("volumes", [])]
        tmpfs = dict(mount.split(":") for mount in self.values.get("tmpfs", []))
        if "user" in self.values:
            user, group = self.values["user"].split(":")
            more["user"] = int(user), int(group)
        if "working_dir" in self.values:
            more["workdir"] = self.values["working_dir"]
        return Container(
            root,
            environment={**environment, **self.environment},
            volumes={inside: volumes[name] for name, inside in mounted},
            tmpfs=tmpfs,
            read_only=self.values.get("read_only", False),
            **more,
        )


def read(path: Path, variables: Mapping[str, str]) -> dict[str, Service]:
    """The services of a compose file, with these variables filled in."""
    document = yaml.safe_load(path.read_text())
    filled = _fill(document, variables)
    found = {}
    for name, values in filled["services"].items():
        if "extends" in values:
            other = read(path.parent / values["extends"]["file"], variables)
            values = {**other[values["extends"]["service"]].values, **values}
        found[name] = Service(name, values, path.parent)
    return found


def seconds(text: str) -> int:
    found = re.fullmatch(r"(?:(\d+)m)?(?:(\d+)s)?", text)
    assert found is not None, text
    return 60 * int(found[1] or 0) + int(found[2] or 0)


def _fill(value: Any, variables: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _fill(item, variables) for key, item in value.items()}
    if isinstance(value, list):
        return [_fill(item, variables) for item in value]
    if not isinstance(value, str):
        return value

    def fill(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        assert found["name"], f"a $ that is neither $$ nor a variable: {value}"
        return variables.get(found["name"], "") or found["default"] or ""

    return re.sub(r"\$\$|\$\{(?P<name>\w+)(?::-(?P<default>[^}]*))?\}|\$", fill, value)
