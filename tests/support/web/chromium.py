"""Finds Debian's Chromium; as a command, installs it where it is missing.

`make test-web` runs the command before the tests, which fetch nothing.
"""

import shutil
import subprocess
import sys


def find() -> str | None:
    """The program's path; None if it is not installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


def install() -> None:
    command = ["apt-get", "--quiet", "--yes", "install", "--no-install-recommends", "chromium"]
    if subprocess.run(command).returncode != 0:
        subprocess.run(["apt-get", "--quiet", "update"], check=True)
        subprocess.run(command, check=True)


if __name__ == "__main__":
    if find() is None:
        try:
            install()
        except (OSError, subprocess.CalledProcessError) as error:
            # Without it, the tests that need it say so.
            print(f"Chromium cannot be installed: {error}", file=sys.stderr)
