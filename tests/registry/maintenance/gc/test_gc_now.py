"""`gc --apply --now`: what was dropped or never committed is on the disk no more after one run."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from deltahub.registry import Caller, Registry, Settings
from deltahub.registry.commands import maintenance
from deltahub.registry.retention.drop import delete_ref
from deltahub.registry.uploads.known_files import query_and_keep
from support.registry.collecting import collect, is_clean
from support.registry.commits import NAME
from support.registry.histories import committed, read
from support.registry.opened import caller, opened_registry, sha256_of, upload
from support.registry.xet import XorbOf, cut, send_xorb

SECRET, UPLOADED, SENT = (os.urandom(3000) for _ in range(3))
KEPT = os.urandom(200_000)


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as reg:
        yield reg


@pytest.fixture
def alice(reg: Registry) -> Caller:
    return caller(reg, "alice")


def on_disk(reg: Registry) -> set[bytes]:
    files = [path.read_bytes() for path in reg.data_dir.rglob("*") if path.is_file()]
    return {each for each in (SECRET, UPLOADED, SENT) if any(each in file for file in files)}


def test_after_one_run_nothing_of_a_secret_is_on_the_disk(reg: Registry, alice: Caller) -> None:
    first = committed(reg, alice, {"a": b"1"})
    # The secret lies in a pack of which nearly all is needed.
    committed(reg, alice, {"kept": KEPT, "s": SECRET}, ref="oops", expected_parent=first)
    committed(reg, alice, {"kept": KEPT})
    upload(reg, alice, UPLOADED)
    send_xorb(reg, NAME, XorbOf(cut(SENT), scheme=0))
    delete_ref(reg, alice, NAME, "branch", "oops")
    # Somebody was told that the hub has the file, a moment ago.
    query_and_keep(reg, alice, NAME, [(sha256_of(KEPT), len(KEPT))])
    assert on_disk(reg) == {SECRET, UPLOADED, SENT}
    collect(reg, lease_s=0, grace_s=0, revision_grace_s=0)
    assert on_disk(reg) == {SECRET, UPLOADED, SENT}, "then the option would not be needed"
    result = CliRunner().invoke(
        maintenance.gc, ["--apply", "--now", "--data-dir", str(reg.data_dir)]
    )
    assert result.exit_code == 0, result.output
    assert on_disk(reg) == set()
    assert read(reg, "kept") == KEPT
    assert is_clean(reg)


def test_it_takes_no_times_beside_it(reg: Registry) -> None:
    given = ["--now", "--lease", "0", "--data-dir", str(Settings().data_dir)]
    result = CliRunner().invoke(maintenance.gc, given)
    assert result.exit_code == 2
    assert "leave the times out" in result.output
