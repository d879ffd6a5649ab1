"""A backup or a restore that is killed at any step harms nothing, and works when it is repeated."""

import shutil
from pathlib import Path

import pytest

from deltahub.registry import failpoints
from deltahub.registry.maintenance.backup.run import backup
from deltahub.registry.registry import Registry
from deltahub.registry.settings import Settings
from deltahub.registry.stores.current import HalfRestored
from support import forked
from support.registry.backing_up import findings, names, restored
from support.registry.collecting import collect, is_clean
from support.registry.ingested import push_ingested, read_file
from support.registry.opened import caller, opened_registry
from support.registry.small_hub import PATH, TUNE, SmallHub

KILLED = """
import sys
from pathlib import Path
from deltahub.registry.maintenance.backup.run import backup
from deltahub.registry.registry import Registry
from deltahub.registry.settings import Settings
from support.registry.backing_up import restored
if sys.argv[3] == "backup":
    with Registry.open(Settings(data_dir=Path(sys.argv[1]))) as reg:
        reg.store.put("packs/aa/unneeded", [b"1"])
        backup(reg, sys.argv[2], keep=1)
else:
    restored(Path(sys.argv[2]), Path(sys.argv[1]))
"""


def kill(what: str, folder: Path, place: Path, failpoint: str) -> None:
    died = forked.run(
        "-c", KILLED, folder, place, what, environment={"DELTAHUB_FAILPOINT": failpoint}
    )
    assert died.returncode == -9


@pytest.mark.parametrize(
    "failpoint", [name for name in failpoints.ALL if name.startswith("backup.")]
)
def test_a_killed_backup_harms_nothing_and_the_next_one_works(
    hub: SmallHub, tmp_path: Path, failpoint: str
) -> None:
    place = tmp_path / "place"
    backup(hub.reg, str(place))
    for number in range(2):
        push_ingested(hub.reg, hub.ann, f"ann/m{number}", {"a.bin": bytes([number]) * 5000})
    kill("backup", hub.reg.data_dir, place, failpoint)
    n_finished = 2 if failpoint == "backup.after_record" else 1
    assert len(names(place)) == n_finished
    assert [findings(place, name) for name in names(place)] == [[]] * n_finished
    # The hold outlives the backup for ten minutes, during which nothing is deleted.
    assert hub.reg.store.held_until() is not None
    hub.reg.store.delete("packs/aa/unneeded")
    assert hub.reg.store.size("packs/aa/unneeded") == 1
    assert is_clean(hub.reg)
    outcome = backup(hub.reg, str(place), keep=1)
    assert outcome.snapshot.findings == ()
    assert (names(place), findings(place)) == ([outcome.snapshot.name], [])
    assert hub.reg.store.held_until() is None
    assert hub.reg.store.n_deferred() == 0
    assert "packs/aa/unneeded" not in {item.key for item in hub.reg.store.list("")}
    assert is_clean(hub.reg)


def test_deferred_deletions_go_on_after_a_kill(hub: SmallHub, tmp_path: Path) -> None:
    backup(hub.reg, str(tmp_path / "place"))
    code = (
        "import sys; from pathlib import Path\n"
        "from deltahub.registry.maintenance.deletions import deletions_held\n"
        "from deltahub.registry.registry import Registry\n"
        "from deltahub.registry.settings import Settings\n"
        "with Registry.open(Settings(data_dir=Path(sys.argv[1]))) as reg, deletions_held(reg):\n"
        "    reg.store.put('packs/aa/unneeded', [b'1'])\n"
        "    reg.store.delete('packs/aa/unneeded')\n"
    )
    died = forked.run(
        "-c", code, hub.reg.data_dir, environment={"DELTAHUB_FAILPOINT": "deferred.after_delete"}
    )
    assert died.returncode == -9
    assert hub.reg.store.n_deferred() == 1
    assert collect(hub.reg).deferred == 1
    assert is_clean(hub.reg)


@pytest.mark.parametrize(
    "failpoint", [name for name in failpoints.ALL if name.startswith("restore.")]
)
def test_a_killed_restore_makes_no_hub_until_it_is_repeated(
    hub: SmallHub, tmp_path: Path, failpoint: str
) -> None:
    place, elsewhere = tmp_path / "place", tmp_path / "elsewhere"
    backup(hub.reg, str(place))
    kill("restore", elsewhere, place, failpoint)
    with pytest.raises(HalfRestored):
        Registry.open(Settings(data_dir=elsewhere / "data"))
    with pytest.raises(HalfRestored):
        Registry.open_to_read(Settings(data_dir=elsewhere / "data"))
    shutil.rmtree(hub.reg.data_dir / "objects")
    restored(place, elsewhere)
    with opened_registry(elsewhere) as reg:
        assert caller(reg, "ann").name == "ann"
        assert read_file(reg, hub.revisions["ann/tune"], PATH) == TUNE
        assert is_clean(reg)
