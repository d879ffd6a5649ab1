"""A pack that is damaged in part is emptied, so that scrub, backup and gc come to rest."""

import signal
from pathlib import Path

import pytest
from sqlalchemy import func, select

from deltahub.registry.db.models import Frame, Pack, Tensor
from deltahub.registry.errors import DataLost
from deltahub.registry.maintenance.backup.run import backup
from deltahub.registry.maintenance.repair.run import repair
from deltahub.registry.maintenance.repair.salvage import salvage
from deltahub.registry.storage.keys import pack_key
from support import forked
from support.registry.backing_up import findings as backup_findings
from support.registry.collecting import age_everything, collect, is_clean
from support.registry.ingested import push_ingested
from support.registry.scrubbing import findings, n_lost, scrubbed
from support.registry.small_hub import BASE, NOTES, PATH, TUNE, SmallHub


def n_tensors(hub: SmallHub, pack: str, *, lost: bool) -> int:
    """Tensors with frames in the pack, those that are marked as lost or the others."""
    with hub.reg.db.read() as session:
        count = (
            select(func.count(Frame.tensor_id.distinct()))
            .join(Tensor, Tensor.id == Frame.tensor_id)
            .where(Frame.pack_id == pack, Tensor.lost.is_not(None) == lost)
        )
        return session.scalar(count) or 0


def test_what_can_be_read_leaves_a_damaged_pack_and_a_push_ends_the_damage(
    hub: SmallHub, tmp_path: Path
) -> None:
    pack = hub.pack_of("ann/base")
    hub.flip_a_block("ann/base")
    done = scrubbed(hub.reg)
    assert done.restored.salvaged_tensors > 0
    assert (n_tensors(hub, pack, lost=False), n_tensors(hub, pack, lost=True)) == (0, 1)
    with pytest.raises(DataLost):
        hub.read("ann/base")
    assert hub.read("ann/notes", "notes.txt") == NOTES

    push_ingested(hub.reg, hub.ann, "ann/base", {PATH: BASE})
    assert (hub.read("ann/base"), hub.read("ann/tune")) == (BASE, TUNE)
    assert scrubbed(hub.reg).n_found == 0
    assert "open" not in findings(hub.reg).values()
    assert backup(hub.reg, str(tmp_path / "place")).snapshot.findings == ()
    assert backup_findings(tmp_path / "place") == []
    age_everything(hub.reg, 30)
    collect(hub.reg)
    with hub.reg.db.read() as session:
        assert session.get(Pack, pack) is None
    assert pack_key(pack) not in {item.key for item in hub.reg.store.list("")}
    assert (hub.read("ann/base"), hub.read("ann/tune")) == (BASE, TUNE)
    assert is_clean(hub.reg)


def test_fsck_repair_salvages_too(hub: SmallHub) -> None:
    pack = hub.pack_of("ann/base")
    hub.flip_a_block("ann/base")
    assert repair(hub.reg, read_data=True).salvaged_tensors > 0
    assert n_tensors(hub, pack, lost=False) == 0
    assert repair(hub.reg, read_data=True).salvaged_tensors == 0


def test_a_tensor_that_was_damaged_since_it_was_judged_stays(hub: SmallHub) -> None:
    pack = hub.pack_of("ann/base")
    with hub.reg.db.write() as session:
        session.get_one(Pack, pack).state = "damaged"
    before = n_tensors(hub, pack, lost=False)
    hub.flip_a_block("ann/base")
    notes: list[str] = []
    assert salvage(hub.reg, pack, notes) == before - 1
    assert n_tensors(hub, pack, lost=False) == 1
    assert n_lost(hub.reg) == 0  # it is not salvage that marks


def test_a_lost_pack_is_forgotten_once_its_tensors_were_pushed_again(
    hub: SmallHub, tmp_path: Path
) -> None:
    hub.lose("ann/base")
    assert [code for code, _ in scrubbed(hub.reg).found] == ["pack_missing"]
    push_ingested(hub.reg, hub.ann, "ann/base", {PATH: BASE})
    assert scrubbed(hub.reg).n_found == 0
    assert "open" not in findings(hub.reg).values()
    assert backup(hub.reg, str(tmp_path / "place")).snapshot.findings == ()
    assert is_clean(hub.reg)


@pytest.mark.parametrize(
    "failpoint", ["packs.put.after_put", "salvage.before_commit", "salvage.after_commit"]
)
def test_a_salvage_that_is_killed_is_repeated(hub: SmallHub, failpoint: str) -> None:
    pack = hub.pack_of("ann/base")
    hub.flip_a_block("ann/base")
    command = ["-m", "deltahub.client.cli.main", "fsck", "--repair", "--read-data"]
    command += ["--data-dir", str(hub.reg.data_dir)]
    died = forked.run(*command, environment={"DELTAHUB_FAILPOINT": failpoint})
    assert died.returncode == -signal.SIGKILL
    again = forked.run(*command)
    assert again.returncode == 1, again.stdout + again.stderr
    assert n_tensors(hub, pack, lost=False) == 0
    push_ingested(hub.reg, hub.ann, "ann/base", {PATH: BASE})
    assert (hub.read("ann/base"), hub.read("ann/tune")) == (BASE, TUNE)
    age_everything(hub.reg, 30)
    collect(hub.reg)
    assert is_clean(hub.reg)
