"""Ratios of the store benchmark are taken within each round: machines change their speed."""

from benchmarks.store.downloads import Download
from benchmarks.store.run import row_of


def test_ratios_are_medians_of_the_rounds() -> None:
    found = {
        ("base", "local"): [Download(1.0, 1.0, 100), Download(2.0, 2.0, 100), Download(4, 4, 100)],
        ("base", "cold"): [Download(2.0, 3.0, 100), Download(2.0, 2.0, 100), Download(4, 4, 100)],
        ("base", "boto3 alone"): [Download(1.0, 0, 50), Download(1.0, 0, 50), Download(1, 0, 50)],
    }
    row = row_of("base", "cold", found["base", "cold"], found, 50)
    assert (row["wall_to_local"], row["cpu_to_local"], row["rate_to_boto3"]) == (1.0, 1.0, 0.5)
    assert (row["wall_s"], row["stored_bytes"], row["file_bytes"]) == (2.0, 50, 100)
    alone = row_of("base", "boto3 alone", found["base", "boto3 alone"], found, 50)
    assert alone["wall_to_local"] == alone["rate_to_boto3"] == ""
