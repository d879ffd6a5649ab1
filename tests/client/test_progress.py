"""Progress: bars on a terminal, lines in a pipe, nothing beside JSON."""

import io
import os
import pty
import re
import subprocess
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from deltahub.client import Hub, Lines
from deltahub.client.progress import human_size
from deltahub.client.records import JobProgress
from support.service.client_process import COMMAND
from support.service.hub import RunningHub


def test_a_terminal_shows_a_bar_with_bytes_and_speed(
    hub_server: RunningHub, name: str, tmp_path: Path
) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "weights.bin").write_bytes(os.urandom(3_000_000))
    main, terminal = pty.openpty()
    try:
        run = subprocess.Popen(
            [*COMMAND, "push", str(folder), name],
            env={
                **os.environ,
                "DELTAHUB_URL": hub_server.url,
                "DELTAHUB_TOKEN": hub_server.admin_token,
                "COLUMNS": "120",
                "TERM": "xterm",
            },
            stdout=subprocess.PIPE,
            stderr=terminal,
        )
        os.close(terminal)
        # Read while it runs: a terminal buffers 4 KiB, and then the writer blocks.
        shown = b""
        try:
            while block := os.read(main, 65536):
                shown += block
        except OSError:
            pass  # a terminal raises this once no process writes to it
        printed, _ = run.communicate(timeout=60)
    finally:
        os.close(main)
    assert run.returncode == 0
    assert printed.startswith(b"pushed")
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert re.search(r"upload .*3\.0/3\.0 MB", text)


def test_a_push_names_every_stage_as_it_begins(hub: Hub, name: str, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    weights = np.random.default_rng().normal(size=400_000).astype(np.float32)
    save_file({"w": weights}, folder / "model.safetensors")
    out = io.StringIO()
    hub.push(folder, name, progress=Lines(out))
    begun = [line[:-4] for line in out.getvalue().splitlines() if line.endswith(" ...")]
    assert begun == [
        "hash 1.6 MB",
        "compare with the hub",
        "upload 1.6 MB",
        "keep a copy for the next push 1.6 MB",
        "store at the hub",
    ]


def test_a_pipe_gets_a_line_at_the_begin_and_the_end_of_a_stage() -> None:
    out = io.StringIO()
    lines = Lines(out)
    with lines.stage("upload", 2_000_000) as stage:
        stage.advance(1_000_000)
        stage.set_position(5, 10, "hub: ingest")
    lines.note("by the way")
    first, second, third = out.getvalue().splitlines()
    assert first == "upload 2.0 MB ..."
    assert second.startswith("upload 2.0 MB done in 0.0 s")
    assert third == "by the way"


def test_a_pipe_gets_a_line_now_and_then_while_a_stage_lasts() -> None:
    out = io.StringIO()
    with Lines(out, every_s=0).stage("train", None, is_bytes=False) as stage:
        stage.set_position(1, 8)
        stage.set_position(1, 8)
        stage.set_position(2, 8, "step 2 of 6, 34%: train")
    told = ["train ...", "train: 1 of 8", "step 2 of 6, 34%: train"]
    assert out.getvalue().splitlines()[:-1] == told


def test_a_job_tells_its_step_its_share_and_what_it_does() -> None:
    assert JobProgress(0, 0, "train", 0.344, 2, 6).sentence("train") == "step 2 of 6, 34%: train"
    assert JobProgress(0, 0, "train", 0.5).sentence("train") == "50%: train"
    assert JobProgress(0, 0).sentence("store") == "store"
    assert JobProgress(0, 0, None, None, 1, 3).sentence("") == "step 1 of 3"


def test_sizes_for_people() -> None:
    assert [human_size(n) for n in (0, 999, 1000, 999_949, 999_951, 1_234_567_890, 10**15)] == [
        "0 B", "999 B", "1.0 kB", "999.9 kB", "1.0 MB", "1.2 GB", "1.0 PB",
    ]  # fmt: skip
