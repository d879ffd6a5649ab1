"""Makes the environments of the clients that the tests here run.

One a file of pins, in .cache/clients/<name>-<digest> of the checkout. What is there already and
whole is left alone; what is not whole, or has other pins than today's, is removed.
"""

import fcntl
import importlib.metadata
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PINS = Path(__file__).resolve().parent / "pins"
CACHE = ROOT / ".cache" / "clients"
NEWEST = "newest"
# Hugging Face's clients, and the one environment with those of S3.
NAMES = ("hub-0.34", "hub-0.36", "hub-1.4", "hub-1.26", NEWEST)
S3 = "s3"
_WITH_TORCH = (NEWEST, S3)
_WHOLE = "whole.stamp"


@dataclass(frozen=True)
class Environment:
    """One set of pinned packages, and where it is installed."""

    name: str
    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def is_whole(self) -> bool:
        # An interpreter that went away leaves a link to nothing.
        return (self.folder / _WHOLE).exists() and self.python.exists()

    @property
    def version(self) -> tuple[int, ...]:
        """That of huggingface_hub."""
        for line in _pins(self.name).read_text().splitlines():
            package, _, version = line.partition("==")
            if package.replace("-", "_") == "huggingface_hub":
                return tuple(int(part) for part in version.split("."))
        raise AssertionError(f"{self.name} pins no huggingface_hub")


def environment(name: str) -> Environment:
    """Where the environment of this name belongs, made or not."""
    digest = sha256(_pins(name).read_bytes() + sys.version.encode())
    if name in _WITH_TORCH:
        digest.update(str(_torch_files()).encode())
    return Environment(name, CACHE / f"{name}-{digest.hexdigest()[:12]}")


def make_all() -> list[Environment]:
    """All environments, whole. Safe to interrupt, and to run beside itself."""
    wanted = [environment(name) for name in (*NAMES, S3)]
    if all(each.is_whole for each in wanted):
        return wanted
    with alone():
        for folder in CACHE.iterdir():
            is_python = not folder.name.startswith("javascript-")  # npm.py makes that one
            if folder.is_dir() and is_python and folder not in [each.folder for each in wanted]:
                shutil.rmtree(folder)
        missing = [each for each in wanted if not each.is_whole]
        with ThreadPoolExecutor(2) as pool:
            for each, seconds in zip(missing, pool.map(_make, missing), strict=True):
                print(f"{each.name}: made in {seconds:.0f} s")
    return wanted


def _make(wanted: Environment) -> float:
    start = time.monotonic()
    shutil.rmtree(wanted.folder, ignore_errors=True)
    # No pip inside: ours installs into it, which is quicker than to begin with a copy.
    python = [sys.executable, "-m", "venv", "--without-pip", str(wanted.folder)]
    subprocess.run(python, check=True)
    if wanted.name in _WITH_TORCH:
        _link_torch(wanted)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    pip += ["--python", str(wanted.python)]
    pins = ["--no-compile", "--no-deps", "-r", str(_pins(wanted.name))]
    subprocess.run([*pip, "install", *pins], check=True)
    # Whether the pins name all that is needed.
    subprocess.run([*pip, "check"], check=True)
    (wanted.folder / _WHOLE).touch()
    return time.monotonic() - start


def _link_torch(wanted: Environment) -> None:
    """The torch of the project's own environment, alone of all that is there: it is 700 MB."""
    (site_packages,) = wanted.folder.glob("lib/python*/site-packages")
    for source in _torch_files():
        (site_packages / source.name).symlink_to(source)


def _torch_files() -> list[Path]:
    """The folders that torch's distribution installed."""
    distribution = importlib.metadata.distribution("torch")
    names = {file.parts[0] for file in distribution.files or [] if file.parts[0] != ".."}
    return sorted(Path(str(distribution.locate_file(name))) for name in names)


def _pins(name: str) -> Path:
    return PINS / f"{name}.txt"


@contextmanager
def alone() -> Iterator[None]:
    """Keeps other processes from making environments meanwhile."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "making.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    for made in make_all():
        print(f"{made.name}: {made.folder.relative_to(ROOT)}")
