"""Finds promtool, which checks alert rules; as a command, unpacks it from Debian's package.

`make test-operations` runs the command before the tests, which fetch nothing. The package is only
unpacked into .cache, because to install it would start a Prometheus on this machine.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

PLACE = Path(__file__).resolve().parents[3] / ".cache" / "promtool"


def find() -> str | None:
    """The program's path; None if it is neither installed nor unpacked."""
    return shutil.which("promtool", path=os.pathsep.join([os.environ["PATH"], str(PLACE)]))


def unpack() -> None:
    """Take the program out of Debian's package prometheus."""
    with TemporaryDirectory() as folder:
        download = ["apt-get", "--quiet", "download", "prometheus"]
        if subprocess.run(download, cwd=folder).returncode != 0:
            subprocess.run(["apt-get", "--quiet", "update"], check=True)
            subprocess.run(download, cwd=folder, check=True)
        (package,) = Path(folder).glob("*.deb")
        subprocess.run(["dpkg-deb", "--extract", str(package), folder], check=True)
        PLACE.mkdir(parents=True, exist_ok=True)
        shutil.move(Path(folder) / "usr" / "bin" / "promtool", PLACE / "promtool")


if __name__ == "__main__":
    if find() is None:
        try:
            unpack()
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            # Without it, the tests that need it say so.
            print(f"promtool cannot be unpacked: {error}", file=sys.stderr)
