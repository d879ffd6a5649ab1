"""Every page of a hub with many models: `python -m benchmarks.scale.pages [--n 1000000]`.

The hub is filled as that of the lists (run.py), and served. An administrator's browser asks for
each page, with a session in its cookie. Each row has the median and the 95th percentile of the time
at the client, and the bytes of the page as they are sent.
"""

import argparse
import gzip
import http.client
import re
import tempfile
import time
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from benchmarks.hub import EmbeddedHub, stop_in_order
from benchmarks.results_file import print_columns, write_results
from benchmarks.scale.models import COMMON_BASE, RARE_WORD
from benchmarks.scale.run import PACKAGES, fill, say

_MIN_CALLS: Final = 40
_CALL_S: Final = 4.0
_TUNE: Final = "bench/tune"
PAGES: Final = (
    "/",
    "/?sort=downloads",
    "/?q=model",
    f"/?q={RARE_WORD}",
    "/?q=nowhere",
    f"/?base={COMMON_BASE}",
    "/lab0",
    f"/{_TUNE}",
    f"/{_TUNE}/tree/main",
    f"/{_TUNE}/blob/main/README.md",
    f"/{_TUNE}/blob/main/model.safetensors",
    f"/{_TUNE}/commits/main",
    f"/{_TUNE}/refs",
    f"/{_TUNE}/tensors/main",
    f"/{_TUNE}/lineage",
    f"/{COMMON_BASE}/lineage",
    f"/{_TUNE}/compare",
    f"/{_TUNE}/use",
    "/-/new",
    "/-/jobs",
    "/-/jobs/new/merge",
    "/-/settings",
    "/-/settings/tokens",
    "/-/settings/storage",
    "/-/admin",
    "/-/admin/jobs",
    "/-/admin/storage",
    "/-/admin/storage/namespaces",
    "/-/admin/storage/packs",
    "/-/admin/access/users",
    "/-/admin/access/organizations",
    "/-/admin/access/audit",
    "/-/admin/settings",
)


class Browser:
    """One connection with a session."""

    def __init__(self, hub: EmbeddedHub) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(hub.url).netloc, timeout=600)
        self._cookie = ""
        _, page = self.get("/-/login")
        found = re.search(rb'name="csrf" value="([^"]+)"', page)
        assert found is not None
        form = {"csrf": found[1].decode(), "token": hub.token, "next": "/"}
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        self._connection.request("POST", "/-/login/token", urlencode(form), kind)
        answer = self._connection.getresponse()
        answer.read()
        assert answer.status == 303, answer.status
        self._cookie = (answer.headers["Set-Cookie"] or "").partition(";")[0]

    def get(self, path: str) -> tuple[int, bytes]:
        headers = {"Cookie": self._cookie} if self._cookie else {}
        self._connection.request("GET", path, headers=headers)
        answer = self._connection.getresponse()
        return answer.status, answer.read()


def measure(hub: EmbeddedHub) -> list[dict[str, Any]]:
    """A row for each page."""
    browser = Browser(hub)
    rows = []
    for path in PAGES:
        status, page = browser.get(path)
        assert status == 200, (path, status, page[:2000])
        times: list[float] = []
        end = time.perf_counter() + _CALL_S
        while len(times) < _MIN_CALLS or time.perf_counter() < end:
            start = time.perf_counter()
            browser.get(path)
            times.append(1e3 * (time.perf_counter() - start))
        times.sort()
        rows.append(
            {
                "page": path,
                "calls": len(times),
                "p50_ms": round(times[len(times) // 2], 1),
                "p95_ms": round(times[int(0.95 * len(times))], 1),
                "kb": round(len(page) / 1e3, 1),
                "kb_gzip": round(len(gzip.compress(page)) / 1e3, 1),
            }
        )
        say(f"  {path}: p95 {rows[-1]['p95_ms']} ms")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=1_000_000, help="repositories")
    parser.add_argument("--database-url", help="an empty PostgreSQL database; else SQLite")
    given = parser.parse_args()
    stop_in_order()
    environment = (
        {} if given.database_url is None else {"DELTAHUB_DATABASE_URL": given.database_url}
    )
    with tempfile.TemporaryDirectory() as place:
        folder, began = Path(place, "hub"), time.monotonic()
        token = fill(folder, given.n, Path(place), **environment)
        say(f"{given.n} repositories were written in {time.monotonic() - began:.0f} s")
        with EmbeddedHub(folder, Path(place, "hub.log"), token=token, **environment) as hub:
            rows = measure(hub)
    titles = list(rows[0])
    print_columns(titles, [[str(row[title]) for title in titles] for row in rows])
    kind = "scale-pages" if given.database_url is None else "scale-pages-postgresql"
    say(f"written to {write_results(kind, rows, PACKAGES)}")


if __name__ == "__main__":
    main()
