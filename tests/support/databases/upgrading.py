"""Runs `deltahub db upgrade` in several processes at once."""

import os
import subprocess
from pathlib import Path

from support.service.store_commands import COMMAND, TIMEOUT_S


def upgrade_at_once(data_dir: Path, url: str, n_processes: int) -> list[str]:
    """What each of them prints; all have to succeed."""
    command = [*COMMAND, "db", "upgrade", "--data-dir", str(data_dir)]
    environment = {**os.environ, "DELTAHUB_DATABASE_URL": url}
    processes = [
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(n_processes)
    ]
    lines = []
    for process in processes:
        out, err = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, (out, err)
        lines.append(out)
    return lines
