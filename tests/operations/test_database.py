"""The recipe that moves a hub to PostgreSQL, run as it stands but for the server's address."""

import os
import subprocess
import sys
from pathlib import Path

from sqlalchemy import make_url

from support.containers.recipes import recipe
from support.databases.full_hub import fill, shown
from support.registry.opened import opened_registry
from support.service.postgresql import postgresql_server


def test_a_hub_moves_to_postgresql_and_shows_the_same(tmp_path: Path) -> None:
    with opened_registry(tmp_path) as reg:
        fill(reg)
        before = shown(reg)
    with postgresql_server() as server:
        address = make_url(server)
        assert address.host is not None
        documented = "postgresql+psycopg://hub@127.0.0.1/hub"
        ours = address.set(database="hub").render_as_string()
        script = recipe("database-move")
        assert script.count(documented) == 3
        (tmp_path / "script").write_text(script.replace(documented, ours))
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "DELTAHUB_DATA_DIR": str(tmp_path / "data"),
            "PGHOST": address.host, "PGPORT": str(address.port), "PGUSER": "hub",
        }  # fmt: skip
        done = subprocess.run(
            ["sh", "-eu", str(tmp_path / "script")], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        for line in ("nothing was copied", "both databases hold the same", "PostgreSQL: ", "clean"):
            assert line in done.stdout
        with opened_registry(tmp_path, database_url=ours) as reg:
            assert shown(reg) == before
