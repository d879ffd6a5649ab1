"""A caller who is refused again and again writes no more than a line a second into the log."""

import hashlib
from pathlib import Path

import pytest

from support.service.hub import running_hub


def test_refusals_that_a_caller_repeats_are_logged_once_a_second(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running_hub(tmp_path / "data", max_user_upload_bytes=1 << 60) as hub:
        oids = [hashlib.sha256(b"%d" % i).hexdigest() for i in range(1000)]
        objects = [{"oid": oid, "size": 1 << 40} for oid in oids]  # more than any disk has
        body = {"operation": "upload", "objects": objects}
        hub.create("admin/m")
        for _ in range(50):
            answer = hub.call(
                "POST", "/admin/m.git/info/lfs/objects/batch", token=hub.admin_token, body=body
            )
            assert answer.status == 507
    lines = [record for record in caplog.records if "storage_full" in record.getMessage()]
    assert 1 <= len(lines) < 10
