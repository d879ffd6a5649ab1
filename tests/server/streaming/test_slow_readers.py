"""Clients that read slowly get every byte, although other downloads reuse memory meanwhile."""

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

import numpy as np
import pytest

from support.service.hub import RunningHub, running_hub

SHAPE = (6 << 10, 1 << 10)  # BF16: 12 MiB, three runs
FILE = "/admin/{}/resolve/main/model.safetensors"
SLOW = 3
STEP = 64 << 10


def bf16(values: np.ndarray) -> bytes:
    return (values.view(np.uint32) >> 16).astype("<u2").tobytes()


def model(values: np.ndarray) -> bytes:
    data = bf16(values)
    tensor = {"dtype": "BF16", "shape": list(SHAPE), "data_offsets": [0, len(data)]}
    header = json.dumps({"w": tensor}).encode()
    return len(header).to_bytes(8, "little") + header + data


def pair() -> dict[str, bytes]:
    draw = np.random.default_rng(1)
    base = draw.standard_normal(SHAPE, np.float32) * np.float32(0.02)
    step = draw.standard_normal(SHAPE, np.float32) * np.float32(1e-4)
    return {"base": model(base), "tune": model(base + step)}


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return pair()


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]) -> Iterator[RunningHub]:
    folder = tmp_path_factory.mktemp("slow")
    with running_hub(folder / "data", with_worker=True) as running:
        for name, data in files.items():
            running.create(f"admin/{name}")
            made = running.commit(f"admin/{name}", {"model.safetensors": data})
            assert running.wait_for_job(made["job_id"])["state"] == "done"
        yield running


def body_of(client: socket.socket, size: int, may_go_on: threading.Event) -> str:
    """SHA-256 of the body, read in small steps; after the first one it waits for may_go_on."""
    seen, got = sha256(), 0
    head = b""
    while b"\r\n\r\n" not in head:
        head += client.recv(1)
    while got < size:
        piece = client.recv(STEP)
        assert piece, f"cut after {got} bytes"
        seen.update(piece)
        got += len(piece)
        assert may_go_on.wait(30)
    return seen.hexdigest()


def test_slow_readers_get_every_byte_while_others_are_served(
    hub: RunningHub, files: dict[str, bytes]
) -> None:
    sent = {name: sha256(data).hexdigest() for name, data in files.items()}
    before = hub.call("GET", "/v1/metrics", token=hub.admin_token).json()
    may_go_on = threading.Event()
    with ThreadPoolExecutor(2 * SLOW) as pool:
        slow = []
        for name, data in list(files.items()) * SLOW:
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
            client.connect(hub.address)
            client.settimeout(30)
            client.sendall(f"GET {FILE.format(name)} HTTP/1.1\r\nHost: hub\r\n\r\n".encode())
            slow.append((name, client, pool.submit(body_of, client, len(data), may_go_on)))
        # Overwrite all memory that is free, or that the server takes for free.
        for _ in range(3):
            for name, digest in sent.items():
                answer = hub.call("GET", FILE.format(name))
                assert sha256(answer.body).hexdigest() == digest
        may_go_on.set()
        for name, client, digest in slow:
            assert digest.result(60) == sent[name]
            client.close()
    after = hub.call("GET", "/v1/metrics", token=hub.admin_token).json()
    total = sum(map(len, files.values())) * (SLOW + 3)
    assert after["rebuilt_bytes"] - before["rebuilt_bytes"] > 0.99 * total
    assert after["uploaded_bytes"] == before["uploaded_bytes"]
    # The fine-tune's base was decoded twice; after that its decoded blocks were on the disk.
    assert after["hot_base_bytes"] == 2 * SHAPE[0] * SHAPE[1]
    assert after["hot_base_read_bytes"] > after["hot_base_bytes"]
