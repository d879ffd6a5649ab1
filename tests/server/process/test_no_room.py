"""Without room on the disk, every start says so in a sentence, and reading commands work."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import forked
from support.needed import lacking
from support.registry.opened import caller, opened_registry

MOUNTED = 'mount -t tmpfs -o size="$1" none "$2" && shift && shift && exec "$@"'


def within(size: str, folder: Path) -> list[str]:
    """What runs a command in a mount namespace where the folder is an empty disk of this size."""
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", MOUNTED, "-"]
    command += [size, str(folder)]
    try:
        subprocess.run([*command, "true"], check=True, timeout=20)
    except (OSError, subprocess.CalledProcessError):
        lacking("this machine lets nobody mount a small file system (unshare --user --mount)")
    return command


def run(*words: object, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in words],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


# A disk where the folders fit alone, the tables do not fit, and the signing key does not fit.
@pytest.mark.parametrize("size", ["24k", "120k", "420k"])
def test_a_first_start_without_room_says_so(tmp_path: Path, size: str) -> None:
    serve = [sys.executable, "-m", "deltahub.server", "--port", 0, "--no-worker"]
    refused = run(*within(size, tmp_path), *serve, "--data-dir", tmp_path / "data")
    assert refused.returncode == 1
    assert f"cannot open the data folder {tmp_path}/data:" in refused.stderr
    assert "no room" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert "I/O error" not in refused.stderr


def test_with_a_full_disk_what_writes_says_so_and_what_reads_works(tmp_path: Path) -> None:
    script = [sys.executable, __file__, tmp_path / "data"]
    done = run(*within("3m", tmp_path), *script, timeout_s=120)
    assert done.returncode == 0, done.stdout + done.stderr


def on_full_disk(data: Path) -> None:
    with opened_registry(data.parent) as reg:
        caller(reg, "ann")
    fill(data.parent)
    folder = ["--data-dir", data]
    deltahub = ["-m", "deltahub.client.cli.main"]
    for command in (
        ["-m", "deltahub.server", "--port", 0, *folder],
        ["-m", "deltahub.workers", *folder],
        [*deltahub, "user", "add", "bea", *folder],
        [*deltahub, "gc", "--apply", *folder],
        [*deltahub, "gc", "--apply", "--lease", 0, *folder],
        [*deltahub, "recompress", "--apply", *folder],
    ):
        refused = forked.run(*command)
        assert refused.returncode in (1, 2), (command, refused)
        assert "no room" in refused.stderr, (command, refused)
        assert "Traceback" not in refused.stderr, (command, refused)
    for command in (
        [*deltahub, "fsck", "--read-data", *folder],
        [*deltahub, "gc", *folder],
        [*deltahub, "user", "list", *folder],
    ):
        done = forked.run(*command)
        assert done.returncode == 0, (command, done)


def fill(folder: Path) -> None:
    with (folder / "ballast").open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                continue


if __name__ == "__main__":
    on_full_disk(Path(sys.argv[1]))
