"""A file of more than 50 GB through virtual Xet: `python -m benchmarks.hugging_face.huge`.

One tensor, 816 times in a safetensors file of 51 GiB: the hub keeps it once, so that the file needs
no disk. It is proved by a recipe as any push is; then its plan and ranges anywhere are asked for.
"""

import argparse
import hashlib
import http.client
import io
import json
import random
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, Final
from urllib.parse import urlsplit

from benchmarks.hub import EmbeddedHub, HubFailed, stop_in_order
from benchmarks.results_file import print_columns, write_results
from deltahub.codecs import PackWriter, encode_frame, make_recipe, plan_file, split_frames
from deltahub.codecs import tensor_id as id_of
from deltahub.registry.access import tokens
from deltahub.registry.catalog.commit import AddFile, commit
from deltahub.registry.catalog.repositories import create_repository
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.jobs import requests
from deltahub.registry.registry import Registry
from deltahub.registry.settings import Settings
from deltahub.registry.uploads.client_packs import accept_pack
from deltahub.registry.uploads.landing import receive
from deltahub.registry.uploads.recipes import submit_recipe

PACKAGES: Final = ("deltahub", "fastapi", "uvicorn")
TENSOR_BYTES: Final = 64 << 20
RANGES: Final = 200
_RANGE_BYTES: Final = 1 << 20
_NAME: Final = "admin/huge"
_FILE: Final = "model.safetensors"
_MOST_DECODED: Final = 1 << 40
_TIMEOUT_S: Final = 1800


class File:
    """`n` tensors of the same noise behind a header; any range of it, made when asked for."""

    def __init__(self, n: int) -> None:
        self.tensor = random.Random(0).randbytes(TENSOR_BYTES)
        entries = {
            f"layer.{i}.weight": {
                "dtype": "BF16",
                "shape": [TENSOR_BYTES // 8192, 4096],
                "data_offsets": [i * TENSOR_BYTES, (i + 1) * TENSOR_BYTES],
            }
            for i in range(n)
        }
        text = json.dumps(entries).encode()
        text += b" " * (-len(text) % 8)
        self.header = len(text).to_bytes(8, "little") + text
        self.size = len(self.header) + n * TENSOR_BYTES
        whole = hashlib.sha256(self.header)
        for _ in range(n):
            whole.update(self.tensor)
        self.sha256 = whole.hexdigest()

    def read(self, start: int, n_bytes: int) -> bytes:
        """Bytes [start, start + n_bytes), less what is beyond the end."""
        out = self.header[start : start + n_bytes]
        while len(out) < n_bytes and start + len(out) < self.size:
            place = (start + len(out) - len(self.header)) % TENSOR_BYTES
            out += self.tensor[place : place + n_bytes - len(out)]
        return out


def run(gib: float, scratch_parent: Path | None) -> None:
    """Measures, prints and writes the figures. HubFailed where bytes came back changed."""
    file = File(int(gib * (1 << 30)) // TENSOR_BYTES)
    limits = {"DELTAHUB_MAX_DECODED_BYTES": str(_MOST_DECODED)}
    with tempfile.TemporaryDirectory(prefix="deltahub-bench-", dir=scratch_parent) as name:
        scratch = Path(name)
        with EmbeddedHub(scratch / "data", scratch / "hub.log", **limits) as hub:
            began = time.perf_counter()
            _push(hub, file)
            proved_s = time.perf_counter() - began
            row = {"file_bytes": file.size, "proved_s": round(proved_s, 1)}
            row |= _read(hub, file)
            row["stored_bytes"] = sum(hub.stored())
    print_columns(list(row), [[str(value) for value in row.values()]])
    notes = [
        f"{file.size // TENSOR_BYTES} times the same 64 MiB of noise; the plan of the whole file,"
        f" and {RANGES} ranges of a MiB anywhere, each with its plan, compared byte for byte;"
        " medians, and the slowest of the ranges"
    ]
    write_results("hugging-face-huge", [row], PACKAGES, notes)


def _push(hub: EmbeddedHub, file: File) -> None:
    plan = plan_file(file.read, file.size, _FILE)
    sink = io.BytesIO()
    writer = PackWriter(sink)
    noise = id_of(file.tensor)
    ids: list[bytes] = []
    for piece in plan.tensor_pieces():
        # A piece without a name is a header too long for a recipe.
        data = file.tensor if piece.name else file.read(piece.start, piece.end - piece.start)
        identity = noise if piece.name else id_of(data)
        if identity not in ids:
            spec = piece.spec(identity)
            (part,) = split_frames(spec)
            writer.add(encode_frame(spec, part, data, codec="raw"))
        ids.append(identity)
    writer.finish()
    recipe = make_recipe(plan, bytes.fromhex(file.sha256), ids, file.read)
    settings = Settings(data_dir=hub.data_dir, max_decoded_bytes=_MOST_DECODED)
    with Registry.open(settings) as registry:
        admin = tokens.authenticate(registry, hub.token)
        create_repository(registry, admin, _NAME)
        pack = sink.getvalue()
        sha256 = hashlib.sha256(pack).hexdigest()
        receive(registry, admin, sha256, len(pack), 0, [pack])
        accept_pack(registry, FileReader(registry), admin, _NAME, sha256)
        submitted = submit_recipe(registry, admin, _NAME, recipe.to_bytes())
        if submitted.job_id is None:
            raise HubFailed(f"the recipe is {submitted.state}, which it cannot be yet")
        deadline = time.monotonic() + _TIMEOUT_S
        while (job := requests.get_job(registry, admin, submitted.job_id)).state != "done":
            if job.state == "failed" or time.monotonic() > deadline:
                raise HubFailed(f"the recipe was not proved: {job}")
            time.sleep(0.2)
        commit(registry, admin, _NAME, "main", [AddFile(_FILE, file.sha256, file.size)])


def _read(hub: EmbeddedHub, file: File) -> dict[str, Any]:
    """What the whole plan and the ranges took."""
    token = hub.token
    service = json.loads(_get(hub.url + f"/api/models/{_NAME}/xet-read-token/main", token))
    url = f"{service['casUrl']}/v2/reconstructions/{file.sha256}"
    access = service["accessToken"]
    began = time.perf_counter()
    said = json.loads(_get(url, access))
    plan_s = time.perf_counter() - began
    if sum(term["unpacked_length"] for term in said["terms"]) != file.size:
        raise HubFailed("the plan is not that of the whole file")
    places = random.Random(1)
    spent = []
    # The last bytes, those up to 50 GB, and any.
    starts = [file.size - _RANGE_BYTES, min(50_000_000_000, file.size) - _RANGE_BYTES]
    starts += [places.randrange(file.size - _RANGE_BYTES) for _ in range(RANGES - len(starts))]
    for start in starts:
        began = time.perf_counter()
        found = _range(url, access, start, start + _RANGE_BYTES)
        spent.append(time.perf_counter() - began)
        if found != file.read(start, _RANGE_BYTES):
            raise HubFailed(f"the bytes from {start} on came back changed")
    return {
        "terms": len(said["terms"]),
        "plan_ms": round(1000 * plan_s, 1),
        "range_ms": round(1000 * median(spent), 1),
        "slowest_range_ms": round(1000 * max(spent), 1),
    }


def _range(url: str, access: str, start: int, end: int) -> bytes:
    """Bytes [start, end) as a client puts them together."""
    said = json.loads(_get(url, access, start, end - 1))
    data = b""
    for term in said["terms"]:
        (fetch,) = said["xorbs"][term["hash"]]
        (wanted,) = fetch["ranges"]
        body = _get(fetch["url"], "", wanted["bytes"]["start"], wanted["bytes"]["end"])
        place = 0
        while place < len(body):
            stored = int.from_bytes(body[place + 1 : place + 4], "little")
            data += body[place + 8 : place + 8 + stored]
            place += 8 + stored
    skipped = said["offset_into_first_range"]
    return data[skipped : skipped + end - start]


def _get(url: str, token: str, first: int | None = None, last: int | None = None) -> bytes:
    parts = urlsplit(url)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    if first is not None:
        headers["Range"] = f"bytes={first}-{last}"
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)
    connection.request("GET", parts.path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    if answer.status not in (200, 206):
        raise HubFailed(f"{url}: {answer.status} {body[:300]!r}")
    return body


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=51.0, help="size of the file")
    parser.add_argument("--scratch", type=Path, help="where to put the hub's data meanwhile")
    arguments = parser.parse_args()
    stop_in_order()
    run(arguments.gib, arguments.scratch)


if __name__ == "__main__":
    main()
