"""Nothing is imported from the folder in which a hub is started."""

import subprocess
import sys
from pathlib import Path

import pytest

from deltahub.workers.compute.process import ComputeProcess
from deltahub.workers.failures import StepFailed
from deltahub.workers.settings import WorkerSettings
from support.registry.opened import opened_registry
from support.service.hub import served_hub

POISON = 'from pathlib import Path\nPath({mark!r}).touch()\nraise SystemExit("poisoned")\n'
# Modules that the worker needs, and one that the standard library looks for.
MODULES = ("six", "dateutil", "sqlalchemy", "numpy", "json", "usercustomize", "deltahub")
NOBODY = "deltahub.workers.no_such_step:run"


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that a module of the working folder writes if it is imported."""
    folder = tmp_path / "downloads"
    folder.mkdir()
    imported = tmp_path / "imported"
    for name in MODULES:
        (folder / f"{name}.py").write_text(POISON.format(mark=str(imported)))
    monkeypatch.chdir(folder)
    return imported


def test_a_hub_and_its_worker_import_nothing_from_the_working_folder(
    mark: Path, tmp_path: Path
) -> None:
    command = (str(Path(sys.executable).parent / "deltahub"), "serve")
    with served_hub(tmp_path / "data", command=command) as hub:
        hub.create("admin/first")
        made = hub.commit("admin/first", {"a.txt": b"kept"})
        assert hub.wait_for_job(made["job_id"])["state"] == "done"
    assert not mark.exists()


def test_the_process_of_a_job_imports_nothing_from_the_working_folder(
    mark: Path, tmp_path: Path
) -> None:
    def nothing(*_: object) -> None:
        pass

    with opened_registry(tmp_path) as reg, ComputeProcess(reg, WorkerSettings(), "a job") as one:
        # The process answers: it has imported all that it needs, and only then lacks this step.
        with pytest.raises(StepFailed, match="no_such_step"):
            one.run(NOBODY, {}, on_progress=nothing, on_log=nothing, check_cancel=nothing)
    assert not mark.exists()


def test_the_modules_above_are_poison(mark: Path) -> None:
    run = subprocess.run([sys.executable, "-m", "deltahub.workers"], capture_output=True, text=True)
    assert "poisoned" in run.stderr
    assert mark.exists()
