"""Installs the clients in JavaScript that the tests here run, by npm, from a file of exact pins.

In .cache/clients/javascript-<digest> of the checkout. What is there already and whole is left.
"""

import os
import shutil
import subprocess
from functools import cache
from hashlib import sha256
from pathlib import Path

from clients.environments import CACHE, ROOT, alone

SOURCES = Path(__file__).resolve().parent
_PINS = ("package.json", "package-lock.json")
_WHOLE = "whole.stamp"


def node(program: str = "node") -> str:
    """The path of node or npm: the system's, or those that `make install` has put into .venv."""
    found = shutil.which(program) or shutil.which(program, path=str(ROOT / ".venv" / "bin"))
    if found is None:
        raise FileNotFoundError(f"{program} is not installed: `make install` brings it")
    return found


@cache
def make() -> Path:
    """The folder with node_modules, whole, and the scripts of today."""
    digest = sha256(b"".join((SOURCES / pins).read_bytes() for pins in _PINS)).hexdigest()
    folder = CACHE / f"javascript-{digest[:12]}"
    with alone():
        if not (folder / _WHOLE).exists():
            for old in CACHE.glob("javascript-*"):
                shutil.rmtree(old)
            folder.mkdir(parents=True)
            for pins in _PINS:
                shutil.copy(SOURCES / pins, folder)
            # No scripts of packages: they would download programs from elsewhere.
            options = ("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
            path = f"{os.environ['PATH']}:{ROOT / '.venv' / 'bin'}"  # where npm looks for node
            environment = {**os.environ, "PATH": path}
            command = [node("npm"), "ci", *options]
            subprocess.run(command, cwd=folder, env=environment, check=True)
            (folder / _WHOLE).touch()
        for script in SOURCES.glob("*.mjs"):
            shutil.copy(script, folder)
    return folder


if __name__ == "__main__":
    print(f"javascript: {make().relative_to(ROOT)}")
