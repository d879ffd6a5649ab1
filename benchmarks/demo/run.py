"""`make demo`: train a base and three fine-tunes, push them, pull them back, prove it bit for bit.

Merge the fine-tunes, and load each task with a stock client; convert a PiSSA adapter, and load it
with one, too; export a fine-tune, and run it with compressed weights; upgrade a base, and move its
adapter along. Then back the hub up, lose it, restore it, and prove every model again. Everything
lies in a temporary folder and runs on loopback; nothing stays behind. `make demo-web` keeps the hub
running until it is interrupted.
"""

import argparse
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.demo import models
from benchmarks.demo.adapter import convert_adapter, print_adapter
from benchmarks.demo.export import export_model, print_exports
from benchmarks.demo.merging import merge, print_merge
from benchmarks.demo.picture import Stored, draw_family
from benchmarks.demo.upgrade import print_upgrade, start_owner, upgrade_base
from benchmarks.hub import EmbeddedHub, HubFailed, run_cli, run_json, stop_in_order
from benchmarks.models.sizes import DEMO
from benchmarks.models.train import model_folder, train_family
from benchmarks.results_file import print_columns

NAMESPACE = "admin"
# Nobody reads a demonstration's hub while it cleans up: what would be kept for a while for the
# sake of readers may go at once.
IMPATIENT = {"DELTAHUB_READ_LEASE_S": "0"}
NEXT = """
To look at this hub in a browser: make demo-web, which prints its address and keeps it running.
To run the hub for real, and push a model of your own:
  .venv/bin/deltahub serve                 # prints an administrator's token once
  .venv/bin/deltahub login                 # asks for it
  .venv/bin/deltahub push ./my-model admin/my-model
  .venv/bin/deltahub push ./my-tune admin/my-tune --base admin/my-model
  .venv/bin/deltahub pull admin/my-tune
  .venv/bin/deltahub merge emr --base admin/my-model admin/my-tune admin/other --name admin/both"""


@dataclass
class Row:
    """What happened to one model."""

    name: str
    folder: Path
    size_bytes: int
    pushed_bytes: int = 0
    push_s: float = 0.0
    empty_pull_bytes: int = 0  # into a cache with nothing in it
    base_pull_bytes: int = 0  # into a cache with the base in it
    pull_s: float = 0.0
    stored_bytes: int = 0  # that the hub keeps for this model alone; of the base: for all of them
    faults: list[str] = field(default_factory=list)

    @property
    def repository(self) -> str:
        return f"{NAMESPACE}/{self.name}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--models", type=Path, help="keep the trained models here and use them again"
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep the hub running at the end, to look at its pages"
    )
    parser.add_argument("--picture", type=Path, help="draw what was stored as an SVG file here")
    arguments = parser.parse_args()
    stop_in_order()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="deltahub demo ") as scratch_name:
        scratch = Path(scratch_name)
        trained = arguments.models or scratch / "models"
        # One core trains these while the other one trains the base.
        owner = scratch / "owner of an adapter"
        owner_process = start_owner(owner)
        say(f"Training a base and {len(DEMO.fine_tunes)} fine-tunes (about two minutes) ...")
        names = train_family(DEMO, trained, processes=2)
        say(f"  trained in {time.monotonic() - began:.0f} s")
        folders = {name: model_folder(trained, name, DEMO.dtypes[0]) for name in names}
        rows = [Row(name, path, models.size_bytes(path)) for name, path in folders.items()]
        log_path = scratch / "hub.log"
        try:
            with EmbeddedHub(scratch / "data", log_path, **IMPATIENT) as hub:
                say(f"The hub listens on {hub.url}")
                push_all(hub, rows, scratch)
                pull_all(hub, rows, scratch)
                family_bytes = pull_family(hub, rows, scratch)
                hub.collect_garbage()
                stored, metadata = hub.stored()
                read_stored_bytes(hub, rows, scratch)
                say("merging the fine-tunes, and loading each task with transformers alone ...")
                tunes = {row.repository: row.folder for row in rows[1:]}
                merged = merge(hub, rows[0].repository, tunes, f"{NAMESPACE}/merged", scratch)
                say("training a PiSSA adapter with PEFT, converting and loading it ...")
                adapted = scratch / "adapted"
                adapted.mkdir()
                adapter = convert_adapter(hub, rows[0].repository, f"{NAMESPACE}/adapter", adapted)
                say("exporting a fine-tune, and running it with compressed weights ...")
                running = scratch / "running"
                running.mkdir()
                exports = export_model(hub, rows[1].repository, rows[1].folder, running)
                say("upgrading a base, and moving its adapter along ...")
                moving = scratch / "moving"
                moving.mkdir()
                upgrade = upgrade_base(hub, NAMESPACE, owner, owner_process, moving)
                say("backing up, while it serves ...")
                backup = scratch / "backup"
                run_cli(["backup", "--to", str(backup), "--data-dir", str(hub.data_dir)], {})
            say("losing the hub with all its data, and restoring it from the backup ...")
            shutil.rmtree(hub.data_dir)
            restored = scratch / "restored"
            run_cli(["restore", "--from", str(backup), "--data-dir", str(restored)], {})
            with EmbeddedHub(restored, log_path, token=hub.token) as hub:
                for row in rows:
                    pull(hub, row, scratch / "cache of a new machine")
                if arguments.keep:
                    keep(hub)
        except HubFailed as exc:
            say(f"\nFAILED: {exc}")
            if log_path.exists():
                say(f"--- the hub's log\n{log_path.read_text(errors='replace')[-4000:]}")
            return 1
        finally:
            owner_process.kill()
    print_table(rows, stored, metadata, family_bytes, time.monotonic() - began)
    print_merge(merged)
    print_adapter(adapter)
    print_exports(exports)
    print_upgrade(upgrade)
    say(NEXT)
    if arguments.picture is not None:
        family = [Stored(row.name, row.size_bytes, row.stored_bytes) for row in rows]
        arguments.picture.write_text(draw_family(family, stored))
    faults = [each for each in (adapter.fault, exports.fault, upgrade.fault) if each is not None]
    for fault in faults:
        say(f"\nFAILED: {fault}")
    return 0 if all(not row.faults for row in rows) and not faults else 1


def keep(hub: EmbeddedHub) -> None:
    """Let people look at the hub until they interrupt it, which ends the process."""
    say(f"""
The hub goes on at {hub.url}: open it in a browser.
To see what an administrator sees, log in with the token
  {hub.token}
It ends, and its models are deleted, with Ctrl-C.""")
    while True:
        time.sleep(60)


def say(text: str) -> None:
    print(text, flush=True)


def push_all(hub: EmbeddedHub, rows: list[Row], scratch: Path) -> None:
    """The base first; then, as anybody who fine-tunes would, with the base pulled before."""
    cache = scratch / "cache of the trainer"
    environment = hub.client_environment(cache)
    for row in rows:
        say(f"pushing {row.repository} ...")
        command = ["push", str(row.folder), row.repository, "-m", "demonstration"]
        if row is not rows[0]:
            command += ["--base", rows[0].repository]
        before, began = hub.traffic(), time.monotonic()
        run_cli(command, environment)
        row.push_s = time.monotonic() - began
        row.pushed_bytes = (hub.traffic() - before).received_bytes
        if row is rows[0]:
            run_cli(["pull", row.repository], environment)


def pull_all(hub: EmbeddedHub, rows: list[Row], scratch: Path) -> None:
    """Every model into an empty cache; then all into one cache, the base first."""
    shared = scratch / "cache with the base"
    for row in rows:
        say(f"pulling {row.repository}, comparing files and logits ...")
        row.empty_pull_bytes, _ = pull(hub, row, scratch / f"empty cache {row.name}")
        row.base_pull_bytes, row.pull_s = pull(hub, row, shared)


def pull_family(hub: EmbeddedHub, rows: list[Row], scratch: Path) -> int:
    """Bytes that the server sends for all models at once, into an empty cache."""
    say("pulling the family at once into an empty cache, comparing files ...")
    before = hub.traffic()
    command = ["pull", *(row.repository for row in rows)]
    result = run_json(command, hub.client_environment(scratch / "cache for the family"))
    sent_bytes = (hub.traffic() - before).sent_bytes
    for row, pulled in zip(rows, result["items"], strict=True):
        if models.hashes(Path(pulled["path"])) != models.hashes(row.folder):
            row.faults.append("a file differs after the pull of the family")
    return sent_bytes


def pull(hub: EmbeddedHub, row: Row, cache: Path) -> tuple[int, float]:
    """(bytes that the server sent, seconds); what differs from the original goes to row.faults."""
    before, began = hub.traffic(), time.monotonic()
    result = run_json(["pull", row.repository], hub.client_environment(cache))
    elapsed_s = time.monotonic() - began
    sent_bytes = (hub.traffic() - before).sent_bytes
    row.faults += models.differences(row.folder, Path(result["path"]))
    return sent_bytes, elapsed_s


def read_stored_bytes(hub: EmbeddedHub, rows: list[Row], scratch: Path) -> None:
    environment = hub.client_environment(scratch / "cache of the trainer")
    for row in rows:
        stored = run_json(["info", row.repository, "--brief"], environment)["totals"]
        row.stored_bytes = stored["own"] + (stored["shared"] if row is rows[0] else 0)


def print_table(
    rows: list[Row], stored: int, metadata: int, family_bytes: int, elapsed_s: float
) -> None:
    titles = [
        "model",
        "files",
        "pushed",
        "stored",
        "pull, empty",
        "pull, base",
        "push s",
        "pull s",
        "verified",
    ]
    lines = [
        [
            row.name,
            megabytes(row.size_bytes),
            megabytes(row.pushed_bytes),
            megabytes(row.stored_bytes),
            megabytes(row.empty_pull_bytes),
            "-" if row is rows[0] else megabytes(row.base_pull_bytes),
            f"{row.push_s:.1f}",
            f"{row.pull_s:.1f}",
            "NO" if row.faults else "yes",
        ]
        for row in rows
    ]
    total = sum(row.size_bytes for row in rows)
    verified = sum(1 for row in rows if not row.faults)
    lines.append(
        [
            "total",
            megabytes(total),
            megabytes(sum(row.pushed_bytes for row in rows)),
            megabytes(sum(row.stored_bytes for row in rows)),
            megabytes(sum(row.empty_pull_bytes for row in rows)),
            megabytes(sum(row.base_pull_bytes for row in rows[1:])),
            f"{sum(row.push_s for row in rows):.1f}",
            f"{sum(row.pull_s for row in rows):.1f}",
            f"{verified} of {len(rows)}",
        ]
    )
    say(
        f"\nA base and {len(rows) - 1} fine-tunes ({DEMO.dtypes[0]}). Megabytes of 10^6; pushed "
        "and pulled as counted\nat the server's sockets; a pull goes into an empty cache, or into "
        "one with the base in it.\n"
    )
    print_columns(titles, lines)
    say(
        f"\nstored after `deltahub gc --apply`: {megabytes(stored)} MB, "
        f"{100 * stored / total:.1f} % of the files' bytes "
        f"(databases apart: {megabytes(metadata)} MB, write-ahead logs included)\n"
        f"pulled at once into an empty cache: {megabytes(family_bytes)} MB for the family; a plain "
        f"hub sends {megabytes(total)} MB,\nthe sum of the files\n"
        f"verified {verified} of {len(rows)} models, every file's SHA-256 and every logit, "
        f"twice each, and once more\nafter the hub was lost and restored from its backup; "
        f"{elapsed_s:.0f} s in all"
    )
    for row in rows:
        for fault in row.faults:
            say(f"NOT VERIFIED {row.name}: {fault}")


def megabytes(size: int) -> str:
    return f"{size / 1e6:.2f}"


if __name__ == "__main__":
    sys.exit(main())
