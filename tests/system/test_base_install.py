"""A command of the service, in an environment that has only what the client needs."""

import os
import subprocess
import sys
from pathlib import Path


def test_the_base_install_says_which_extra_is_missing(tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"  # stands before site-packages: as if the extra were not there
    (blocked / "fastapi").mkdir(parents=True)
    (blocked / "fastapi" / "__init__.py").write_text("raise ModuleNotFoundError(name='fastapi')")
    run = subprocess.run(
        [Path(sys.executable).parent / "deltahub", "serve"],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(blocked)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 2
    assert 'pip install ".[server]"' in run.stderr
