"""Headers of proxies count only from proxies that the operator named."""

import re
from pathlib import Path

import pytest

from support.service.hub import served_hub

FORWARDED = {
    "X-Forwarded-For": "203.0.113.9",
    "X-Forwarded-Proto": "https",
    "X-Forwarded-Host": "evil.example",
    "X-Real-IP": "203.0.113.8",
    "Forwarded": "for=203.0.113.7;proto=https;host=evil.example",
}


@pytest.mark.parametrize(
    ("named", "address", "scheme"),
    [("", "127.0.0.1", "http"), ("10.0.0.0/8", "127.0.0.1", "http"),
     ("10.0.0.0/8, 127.0.0.1", "203.0.113.9", "https")],
)  # fmt: skip
def test_who_asks_and_how_is_believed_of_named_proxies_alone(
    named: str, address: str, scheme: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    # uvicorn would read this variable if it had no setting.
    environment = {"DELTAHUB_SERVER_TRUSTED_PROXIES": named, "FORWARDED_ALLOW_IPS": "*"}
    with (
        log.open("wb") as sink,
        served_hub(
            tmp_path / "data",
            log=sink,
            environment=environment,
            arguments=("--no-worker", "--access-log"),
        ) as hub,
    ):
        for name in ("a", "b", "c"):
            hub.create(f"admin/{name}")
        for _ in range(2):
            answer = hub.call("GET", "/api/models?limit=1&author=admin", headers=FORWARDED)
        host, port = hub.address
        assert f"<{scheme}://{host}:{port}/api/models?" in answer.headers["Link"]
    text = log.read_text()
    assert re.search(rf' {re.escape(address)}:\d+ - "GET /api/models HTTP/1.1" 200', text)
    # The operator of a proxy that is not named learns what to do, once.
    n_warnings = text.count("name it in DELTAHUB_SERVER_TRUSTED_PROXIES")
    assert n_warnings == (0 if scheme == "https" else 1)
