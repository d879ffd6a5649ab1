"""A client pulls what a store holds in frames of fm_delta version 0."""

from pathlib import Path

import pytest

from deltahub.client import Hub
from support.hub import running_hub
from support.trial_store import FILES, PATH, digest_of, trial_frames, unpack_trial_store


def test_every_model_is_pulled_bit_for_bit(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltahub.client.pull.SMALL_FILE", 1)  # or small files come as they are
    with (
        running_hub(unpack_trial_store(tmp_path / "old")) as served,
        Hub(served.url, served.admin_token) as hub,
    ):
        reports = {name: hub.pull_with_report(name) for name in FILES}
        assert trial_frames(served.registry) != []
    for name, report in reports.items():
        assert digest_of((report.path / PATH).read_bytes()) == FILES[name]
        # With a base at hand the client asks for the frames, and decodes version 0 itself.
        assert name == "ann/base" or report.received < 0.7 * report.size
