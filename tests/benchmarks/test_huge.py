"""The measurement of a very large file through Xet, on one that is not."""

import csv
from functools import partial
from pathlib import Path

import pytest

from benchmarks.hugging_face import huge
from benchmarks.results_file import write_results


def test_a_file_of_one_tensor_many_times_is_read_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, scratch = tmp_path / "results", tmp_path / "scratch"
    scratch.mkdir()

    monkeypatch.setattr(huge, "write_results", partial(write_results, folder=results))
    monkeypatch.setattr(huge, "RANGES", 8)
    huge.run(0.25, scratch)
    (path,) = results.iterdir()
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    (row,) = csv.DictReader(lines)
    assert int(row["file_bytes"]) > 4 * huge.TENSOR_BYTES
    # The one tensor once, and the file's terms are of 64 MiB.
    assert huge.TENSOR_BYTES < int(row["stored_bytes"]) < 1.2 * huge.TENSOR_BYTES
    assert int(row["terms"]) == 5
    assert list(scratch.iterdir()) == []
