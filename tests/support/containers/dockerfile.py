"""Reads a Dockerfile, and does what its lines say, in root folders instead of image layers."""

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from support.containers.sandbox import BASE_PATH, Container, Machine, base_image

# The build of a stage needs the network and minutes; a package manager needs to be root.
RUN_TIMEOUT_S = 900
_KNOWN = {
    "ARG", "CMD", "COPY", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "RUN", "STOPSIGNAL",
    "USER", "VOLUME", "WORKDIR",
}  # fmt: skip


@dataclass(frozen=True)
class Instruction:
    """One instruction: its word, its flags (--from=...) and the rest of its line."""

    word: str
    flags: Mapping[str, str]
    rest: str

    @property
    def command(self) -> list[str]:
        """The exec form; ValueError for the shell form, under which signals reach a shell."""
        command = json.loads(self.rest)
        if not isinstance(command, list):
            raise ValueError(f"{self.word} is not in exec form: {self.rest}")
        return command


@dataclass
class Image:
    """What a Dockerfile made: a root folder, and how to run what is in it."""

    root: Path
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": BASE_PATH})
    user: tuple[int, int] = (0, 0)
    workdir: str = "/"
    volumes: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    healthcheck: list[str] = field(default_factory=list)
    stop_signal: str = "SIGTERM"
    skipped: list[str] = field(default_factory=list)  # RUN lines of a package manager

    def container(self, **changes: Any) -> Container:
        settings: dict[str, Any] = {
            "environment": self.environment, "user": self.user, "workdir": self.workdir,
        }  # fmt: skip
        return Container(self.root, **{**settings, **changes})


def read(path: Path) -> list[Instruction]:
    """The instructions of a Dockerfile. ValueError for one that this reader does not know."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    instructions = []
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        if not line.strip():
            continue
        word, _, rest = line.strip().partition(" ")
        if word not in _KNOWN:
            raise ValueError(f"unknown instruction {word}")
        flags = {}
        while found := re.match(r"--([a-z-]+)=(\S+)\s+(.*)", rest):
            flags[found[1]] = found[2]
            rest = found[3]
        instructions.append(Instruction(word, flags, rest))
    return instructions


def build(path: Path, folder: Path, machine: Machine, user: tuple[int, int]) -> Image:
    """Do what the Dockerfile says, with its RUN lines as `user`; returns the last stage."""
    context = path.parent
    stages: dict[str, Image] = {}
    arguments: dict[str, str] = {}
    image = Image(folder / "none")
    for step in read(path):
        known = {**arguments, **image.environment}
        if step.word == "ARG":
            name, _, default = step.rest.partition("=")
            arguments[name] = default
        elif step.word == "FROM":
            assert re.fullmatch(r"python:\d\.\d+-slim-\w+", _fill(step.rest.split()[0], known))
            image = Image(folder / f"stage-{len(stages)}")
            image.root.mkdir()
            base_image(image.root, {})
            stages[step.rest.split()[-1]] = image
        elif step.word == "RUN":
            _run(step.rest, image, machine, user)
        elif step.word == "COPY":
            source = stages[step.flags["from"]].root if "from" in step.flags else None
            _copy(step.rest.split(), source, context, image)
        elif step.word == "ENV":
            for name, value in re.findall(r"(\w+)=(\S+)", step.rest):
                image.environment[name] = _fill(value, known)
        elif step.word == "USER":
            user_id, group_id = step.rest.split(":")
            image.user = int(user_id), int(group_id)
        elif step.word == "WORKDIR":
            image.workdir = step.rest
            (image.root / step.rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif step.word == "VOLUME":
            image.volumes.append(step.rest)
        elif step.word == "STOPSIGNAL":
            image.stop_signal = step.rest
        elif step.word == "CMD":
            image.command = step.command
        elif step.word == "HEALTHCHECK":
            image.healthcheck = Instruction("CMD", {}, step.rest.removeprefix("CMD ")).command
    return image


def sent(context: Path, path: Path) -> bool:
    """Whether .dockerignore lets a file of the context through: the last line that fits says."""
    name = path.relative_to(context)
    result = True
    for line in (context / ".dockerignore").read_text().splitlines():
        pattern = line.strip().removeprefix("!")
        if not pattern or pattern.startswith("#"):
            continue
        places = [name, *name.parents][:-1]
        # `**/` is any folder, or none; a pattern without it is anchored at the top.
        fits = any(
            fnmatch(str(place), pattern)
            if "**/" not in pattern
            else fnmatch(place.name, pattern.removeprefix("**/"))
            for place in places
            if "**/" in pattern or len(place.parts) == len(Path(pattern).parts)
        )
        result = line.startswith("!") if fits else result
    return result


def _run(line: str, image: Image, machine: Machine, user: tuple[int, int]) -> None:
    if line.startswith("apt-get "):
        image.skipped.append(line)
        return
    outside = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("PIP_", "SSL_")) or name.lower().endswith("_proxy")
    }
    container = image.container(
        user=user,
        environment={**outside, "HOME": "/tmp", **image.environment},
    )
    done = machine.run(container, ["/bin/sh", "-c", line], timeout_s=RUN_TIMEOUT_S, is_online=True)
    assert done.returncode == 0, f"RUN {line}\n{done.stdout}\n{done.stderr}"


def _copy(words: list[str], source: Path | None, context: Path, image: Image) -> None:
    *names, target = words
    for name in names:
        origin = (source or context) / name.lstrip("/")
        place = image.root / os.path.join(image.workdir, target).lstrip("/")
        if target.endswith("/"):
            place = place / origin.name
        place.parent.mkdir(parents=True, exist_ok=True)
        if origin.is_file():
            assert source is not None or sent(context, origin), f"{name} is in .dockerignore"
            shutil.copy2(origin, place)
            continue
        files = [path for path in _files(origin) if source is not None or sent(context, path)]
        assert files, f"COPY {name} copies nothing"
        for path in files:
            copy = place / path.relative_to(origin)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy, follow_symlinks=False)


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or path.is_file():
            yield path


def _fill(text: str, values: Mapping[str, str]) -> str:
    return re.sub(r"\$\{?(\w+)\}?", lambda found: values[found[1]], text)
