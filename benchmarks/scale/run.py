"""Lists of models in hubs of many sizes: `python -m benchmarks.scale.run [--sizes 1000,100000]`.

Each hub is filled with copies of a few real models (copies.py), and served. Each call is made again
and again for a second; its row has the median of its time, and the server's CPU time a call.
"""

import argparse
import http.client
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from benchmarks.hub import EmbeddedHub, run_cli, stop_in_order
from benchmarks.results_file import print_columns, write_results
from benchmarks.scale.copies import Copy, write_copies
from benchmarks.scale.models import COMMON_BASE, RARE, RARE_BASE, RARE_WORD, Model, models
from deltahub.registry import Registry, Settings
from deltahub.registry.access.organizations import create_organization
from deltahub.registry.access.repositories import find_repository

SIZES: Final = "1000,100000,1000000"
PACKAGES = ("deltahub", "sqlalchemy", "fastapi")
_SHARES: Final = 20  # of a model's copies
_CALL_S: Final = 1.0
_MIN_CALLS: Final = 10
# (row of the table of faults, what is asked)
CALLS: Final = (
    ("S1", "/api/models?limit=1"),
    ("S2", "/api/models?limit=100"),
    ("S2", "/api/models?limit=100&sort=lastModified"),
    ("S2", "/api/models?limit=100&sort=downloads"),
    ("S2", "/api/models?limit=100&full=true"),
    ("S2", "/api/models?limit=100&author=lab0"),
    ("S2", "/v1/repositories?limit=100"),
    ("S2", "/v1/repositories?limit=100&sort=downloads"),
    ("S3", f"/api/models?limit=100&filter=base_model:{COMMON_BASE}"),
    ("S3", f"/api/models?limit=100&filter=base_model:quantized:{COMMON_BASE}&sort=downloads"),
    ("S3", f"/api/models?limit=100&filter=base_model:{RARE_BASE}"),
    ("S3", f"/api/models?limit=100&filter=base_model:measured:{RARE_BASE}&sort=lastModified"),
    ("S3", "/api/models?limit=100&filter=text-generation"),
    ("S3", "/api/models?limit=100&filter=once-in-a-while"),
    ("S3", "/api/models?limit=100&num_parameters=min:1K,max:1M"),
    ("S4", f"/api/models?limit=100&search={RARE_WORD}"),
    ("S4", "/api/models?limit=100&search=model"),
    ("S4", "/api/models?limit=100&search=ok"),
    ("S4", "/api/models?limit=100&search=nowhere"),
    ("S4", f"/v1/repositories?search={RARE_WORD}"),
)


@dataclass(frozen=True)
class Timed:
    """A call. p50_ms: of its time at the client. cpu_ms: of the server, a call."""

    n_bytes: int
    p50_ms: float
    cpu_ms: float


def say(text: str) -> None:
    print(text, flush=True)


def fill(folder: Path, n: int, scratch: Path, **environment: str) -> str:
    """Make a hub of about n repositories in a new folder; returns an administrator's token."""
    log = scratch / "hub.log"
    with EmbeddedHub(folder, log, **environment) as hub:
        token = hub.token
        for owner in ("bench", "bench2"):
            _make_namespace(folder, owner, environment)
        for owner in ("bench", "bench2"):
            for model in models():
                _push(hub, model, model.name.replace("bench/", f"{owner}/"), scratch)
    url = environment.get("DELTAHUB_DATABASE_URL")
    settings = Settings(data_dir=folder, **({"database_url": url} if url else {}))
    with Registry.open(settings) as reg:
        write_copies(reg, copies(reg, n - 2 * len(models())))
    return token


def copies(reg: Registry, n: int) -> Iterator[Copy]:
    """n copies, of the second push of each model: the first has no other model of its weights."""
    made = models()
    with reg.db.read() as session:
        ids = {}
        for model in made:
            found = find_repository(session, model.name.replace("bench/", "bench2/"))
            assert found is not None, model.name
            ids[model.name] = found.id
    of_number = [ids[model.name] for model in made for _ in range(model.share)]
    assert len(of_number) == _SHARES
    for number in range(1, n + 1):
        if number in RARE:
            yield Copy(number, ids["bench/rare-tune"], f"model-{number}-{RARE_WORD}")
        else:
            yield Copy(number, of_number[number % _SHARES], f"model-{number}")


def measure(hub: EmbeddedHub) -> dict[str, Timed]:
    """Make every call for a while, without a token."""
    address = urlsplit(hub.url)
    assert address.hostname is not None
    found = {}
    for _, path in CALLS:
        connection = http.client.HTTPConnection(address.hostname, address.port, timeout=600)
        n_bytes = _call(connection, path)
        _call(connection, path)
        times: list[float] = []
        before, began = cpu_s(hub.pid), time.perf_counter()
        while len(times) < _MIN_CALLS or time.perf_counter() < began + _CALL_S:
            start = time.perf_counter()
            _call(connection, path)
            times.append(time.perf_counter() - start)
        used_s = cpu_s(hub.pid) - before
        connection.close()
        found[path] = Timed(n_bytes, 1e3 * statistics.median(times), 1e3 * used_s / len(times))
    return found


def _call(connection: http.client.HTTPConnection, path: str) -> int:
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    assert answer.status == 200, body
    return len(body)


def cpu_s(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _make_namespace(folder: Path, name: str, environment: dict[str, str]) -> None:
    url = environment.get("DELTAHUB_DATABASE_URL")
    settings = Settings(data_dir=folder, **({"database_url": url} if url else {}))
    with Registry.open(settings) as reg:
        create_organization(reg, name)


def _push(hub: EmbeddedHub, model: Model, name: str, scratch: Path) -> None:
    source = scratch / "model"
    shutil.rmtree(source, ignore_errors=True)
    for path, data in model.files.items():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_bytes(data)
    base = [] if model.base is None else ["--base", model.base]
    run_cli(["push", str(source), name, *base], hub.client_environment(scratch / "client"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default=SIZES, help="repositories of each hub")
    parser.add_argument("--database-url", help="an empty PostgreSQL database, for one size")
    parser.add_argument("--scratch", type=Path, help="a folder to keep the hubs in")
    given = parser.parse_args()
    stop_in_order()
    sizes = [int(size) for size in given.sizes.split(",")]
    environment = (
        {} if given.database_url is None else {"DELTAHUB_DATABASE_URL": given.database_url}
    )
    with tempfile.TemporaryDirectory() as temporary:
        scratch = given.scratch or Path(temporary)
        scratch.mkdir(parents=True, exist_ok=True)
        rows: dict[str, dict[str, Any]] = {
            path: {"fault": fault, "call": path} for fault, path in CALLS
        }
        for size in sizes:
            folder = scratch / f"hub-{size}"
            began = time.monotonic()
            known = scratch / f"token-{size}"
            if not known.exists():
                known.write_text(fill(folder, size, scratch, **environment))
                say(f"{size} repositories were written in {time.monotonic() - began:.0f} s")
            hub = EmbeddedHub(folder, scratch / "hub.log", token=known.read_text(), **environment)
            with hub:
                for path, timed in measure(hub).items():
                    rows[path] |= {
                        f"p50_ms_{size}": round(timed.p50_ms, 1),
                        f"cpu_ms_{size}": round(timed.cpu_ms, 1),
                    }
        titles = list(next(iter(rows.values())))
        print_columns(titles, [[str(row[title]) for title in titles] for row in rows.values()])
        kind = "scale" if given.database_url is None else "scale-postgresql"
        say(f"written to {write_results(kind, list(rows.values()), PACKAGES)}")


if __name__ == "__main__":
    main()
