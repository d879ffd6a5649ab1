"""What the n-th checkpoint of a run costs: `python -m benchmarks.scale.checkpoints --n 80`.

Trains a small Llama-shaped model's worth of weights for n pushes, each a small step from the one
before, to a hub of its own. Prints for each push the seconds until it is settled, the worker's and
the server's CPU, the bytes that the client sent, the bytes stored, and the bytes that a cold reader
needs for a byte; then the figures of the last against the fifth and the first.
"""

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import torch
from safetensors.torch import save_file
from sqlalchemy import func, select

from benchmarks.hub import EmbeddedHub, stop_in_order
from benchmarks.results_file import RESULTS, print_columns, write_results
from deltahub.client import Hub
from deltahub.registry.catalog.weights import weight_tensors
from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import Frame, Revision
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.packs.locations import closure
from deltahub.registry.registry import Registry
from deltahub.registry.settings import Settings

WIDTH, INNER, LAYERS, VOCABULARY = 128, 344, 4, 512
# Standard deviations of weights, and of a step of training between two checkpoints.
WEIGHT, STEP = 0.05, 0.00004
NAME = "admin/run"


@dataclass(frozen=True)
class Row:
    """One push. sent, stored: bytes. read: stored bytes for a byte of the weights."""

    number: int
    settled_s: float
    sent: int
    stored: int
    read: float
    depth: int


def weights() -> dict[str, torch.Tensor]:
    shapes = {"model.embed_tokens.weight": (VOCABULARY, WIDTH)}
    for layer in range(LAYERS):
        for each in "qkvo":
            shapes[f"model.layers.{layer}.self_attn.{each}_proj.weight"] = (WIDTH, WIDTH)
        for each in ("gate", "up"):
            shapes[f"model.layers.{layer}.mlp.{each}_proj.weight"] = (INNER, WIDTH)
        shapes[f"model.layers.{layer}.mlp.down_proj.weight"] = (WIDTH, INNER)
    torch.manual_seed(0)
    return {name: torch.randn(shape) * WEIGHT for name, shape in shapes.items()}


def write(folder: Path, tensors: dict[str, torch.Tensor]) -> int:
    folder.mkdir(exist_ok=True)
    path = folder / "model.safetensors"
    path.unlink(missing_ok=True)
    save_file({name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}, path)
    return path.stat().st_size


def stored_and_read(reg: Registry, commit: str, size: int) -> tuple[int, float]:
    """(bytes of all frames of the hub, bytes that a reader of this commit needs for a byte)."""
    with reg.db.read() as session:
        total = session.scalar(select(func.sum(Frame.length))) or 0
        revision = session.scalars(select(Revision.id).where(Revision.commit == commit)).one()
        needed = closure(session, session.scalars(weight_tensors(revision)))
        read = sum(
            session.scalar(select(func.sum(Frame.length)).where(Frame.tensor_id.in_(batch))) or 0
            for batch in batches(needed)
        )
    return total, read / size


def depth_of(reg: Registry, commit: str) -> int:
    """The longest chain that a reader of this commit follows."""
    with reg.db.read() as session:
        revision = session.scalars(select(Revision.id).where(Revision.commit == commit)).one()
        graph = closure(session, session.scalars(weight_tensors(revision)))
    depths: dict[int, int] = {}
    left = list(graph)
    while left:
        tensor = left.pop()
        missing = [base for base in graph[tensor] if base not in depths]
        if missing:
            left += [tensor, *missing]
        else:
            depths[tensor] = 1 + max((depths[base] for base in graph[tensor]), default=-1)
    return max(depths.values(), default=0)


def wait_until_idle(reg: Registry) -> None:
    while True:
        with reg.db.read() as session:
            active = session.scalar(
                select(func.count()).select_from(Job).where(Job.state.in_(("queued", "running")))
            )
        if not active:
            return
        time.sleep(0.02)


def measure(n: int, scratch: Path) -> tuple[list[Row], int]:
    rows: list[Row] = []
    tensors = weights()
    data_dir = scratch / "data"
    with (
        EmbeddedHub(data_dir, scratch / "hub.log") as embedded,
        Hub(embedded.url, embedded.token) as hub,
        Registry.open_to_read(Settings(data_dir=data_dir)) as reg,
    ):
        size = write(scratch / "base", tensors)
        pushed = hub.push(scratch / "base", "admin/base")
        wait_until_idle(reg)
        before, _ = stored_and_read(reg, pushed.commit, size)
        for number in range(1, n + 1):
            for tensor in tensors.values():
                tensor += torch.randn_like(tensor) * STEP
            folder = scratch / f"run-{number}"
            write(folder, tensors)
            begun = time.perf_counter()
            pushed = hub.push(folder, NAME, base="admin/base")
            wait_until_idle(reg)
            settled = time.perf_counter() - begun
            stored, read = stored_and_read(reg, pushed.commit, size)
            depth = depth_of(reg, pushed.commit)
            rows.append(Row(number, settled, pushed.sent, stored - before, read, depth))
            before = stored
            print(f"{number:3} {settled:6.2f} s, sent {pushed.sent}", flush=True)
    return rows, size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=80, help="checkpoints")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder of the CSV")
    arguments = parser.parse_args()
    stop_in_order()
    with tempfile.TemporaryDirectory(prefix="deltahub checkpoints ") as scratch:
        rows, size = measure(arguments.n, Path(scratch))
    shown = [row for row in rows if row.number in (1, 2, 3, 5) or row.number % 10 == 0]
    print_columns(
        ["n", "settled, s", "sent, kB", "stored, kB", "read for a byte", "depth"],
        [
            [
                str(row.number), f"{row.settled_s:.2f}", f"{row.sent / 1e3:.0f}",
                f"{row.stored / 1e3:.0f}", f"{row.read:.2f}", str(row.depth),
            ]
            for row in shown
        ],
    )  # fmt: skip
    late = rows[-8:]  # a whole chain
    fifth = rows[min(4, len(rows) - 1)].settled_s
    print(
        f"file {size / 1e3:.0f} kB; the last eight against the first:"
        f" sent {mean(row.sent for row in late) / rows[0].sent:.2f} times,"
        f" stored {mean(row.stored for row in late) / rows[0].stored:.2f} times;"
        f" against the fifth: settled in {mean(row.settled_s for row in late) / fifth:.2f} times;"
        f" read {mean(row.read for row in rows):.2f} on the mean,"
        f" {max(row.read for row in rows):.2f} at worst"
    )
    write_results(
        "checkpoints", [vars(row) for row in rows], ("torch", "safetensors"), (), arguments.results
    )


if __name__ == "__main__":
    main()
