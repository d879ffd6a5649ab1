"""fsck --repair marks what is lost, keeps what is right, and can be repeated."""

import json
import signal

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import select

from deltahub.registry import Registry
from deltahub.registry.catalog.commit import AddFile, CopyFile, commit
from deltahub.registry.catalog.repositories import delete_repository
from deltahub.registry.commands import maintenance
from deltahub.registry.db.models import Frame, Pack, Tensor
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import Conflict, DataLost, UploadNotFound
from deltahub.registry.losses.presence import StoreSeemsAway
from deltahub.registry.maintenance.fsck.run import fsck
from deltahub.registry.maintenance.repair.run import Repaired, repair
from deltahub.registry.storage.keys import pack_key
from deltahub.registry.uploads.known_files import query_and_keep
from deltahub.registry.uploads.known_tensors import query_and_hold
from support import forked
from support.models import tiny_models as tiny
from support.registry.collecting import collect, is_clean
from support.registry.ingested import push_ingested, read_file, stored_tensors
from support.registry.opened import sha256_of
from support.registry.small_hub import BASE, NOTES, PATH, TUNE, SmallHub, contents


def test_what_is_lost_is_marked_with_its_names_and_the_rest_stays(hub: SmallHub) -> None:
    hub.lose("ann/base")
    done = repair(hub.reg)
    assert (done.damaged_packs, done.restored_packs, done.restored_tensors) == (1, 0, 0)
    assert done.lost_tensors > 0
    found = {finding.text for finding in fsck(hub.reg, read_data=True)}
    assert {text.split(" is lost")[0] for text in found} == {
        f"'{PATH}' of ann/base",
        f"'{PATH}' of ann/tune",
    }
    assert hub.read("ann/notes", "notes.txt") == NOTES
    for name in ("ann/base", "ann/tune"):
        with pytest.raises(DataLost):
            hub.read(name)
    assert repair(hub.reg) == Repaired()  # a second run finds nothing more


def test_a_lost_file_is_not_known_by_any_name(hub: SmallHub) -> None:
    reg, ann = hub.reg, hub.ann
    with reg.db.read() as session:
        rows = {t.hash: t.size for t in session.scalars(select(Tensor))}
    hub.lose("ann/base")
    repair(reg)
    sizes = [(sha256_of(data), len(data)) for data in (BASE, TUNE, NOTES)]
    assert query_and_keep(reg, ann, "ann/base", sizes) == [sha256_of(NOTES)]
    with reg.db.read() as session:
        marked = set(session.scalars(select(Tensor.hash).where(Tensor.lost.is_not(None))))
    assert marked
    assert set(query_and_hold(reg, ann, "ann/base", list(rows.items()))) == rows.keys() - marked
    for operation in (
        AddFile("copy.safetensors", sha256_of(BASE), len(BASE)),
        AddFile(PATH, sha256_of(BASE), len(BASE)),
        CopyFile("copy.safetensors", sha256_of(BASE)),
    ):
        with pytest.raises(UploadNotFound):
            commit(reg, ann, "ann/base", "main", [operation])


def test_gc_works_again_and_drops_nothing_that_may_come_back(hub: SmallHub) -> None:
    key = pack_key(hub.pack_of("ann/base"))
    data = hub.lose("ann/base")
    with pytest.raises(Conflict, match="fsck --repair"):
        collect(hub.reg)
    repair(hub.reg)
    for _ in range(2):
        collect(hub.reg)
    hub.reg.store.put(key, [data])
    done = repair(hub.reg)
    assert (done.restored_packs, done.damaged_packs, done.lost_tensors) == (1, 0, 0)
    assert done.restored_tensors > 0
    assert hub.read("ann/base") == BASE
    assert hub.read("ann/tune") == TUNE
    assert is_clean(hub.reg)


def test_a_lost_model_can_be_given_up(hub: SmallHub) -> None:
    hub.lose("ann/base")
    repair(hub.reg)
    for name in ("ann/base", "ann/tune"):
        delete_repository(hub.reg, hub.ann, name)
    collect(hub.reg)
    assert hub.read("ann/notes", "notes.txt") == NOTES
    assert is_clean(hub.reg)
    revision = push_ingested(hub.reg, hub.ann, "ann/base", {PATH: BASE})
    assert read_file(hub.reg, revision, PATH) == BASE


def test_a_lost_tensor_that_only_differences_need_is_named_too(hub: SmallHub) -> None:
    delete_repository(hub.reg, hub.ann, "ann/base")
    collect(hub.reg)
    tune = hub.revisions["ann/tune"]
    with hub.reg.db.read() as session:
        bases = {base for each in stored_tensors(hub.reg, tune).values() for base in each.bases}
        packs = select(Frame.pack_id).where(Frame.tensor_id.in_(bases))
        for pack in set(session.scalars(packs)):
            hub.reg.store.delete(pack_key(pack))
    repair(hub.reg)
    found = [finding.code for finding in fsck(hub.reg)]
    assert found == ["file_lost", *["tensor_lost"] * len(bases)]
    push_ingested(hub.reg, hub.ann, "ann/tune", {PATH: TUNE})
    assert hub.read("ann/tune") == TUNE
    collect(hub.reg)
    assert is_clean(hub.reg)


def test_a_store_that_is_away_does_not_look_like_loss(hub: SmallHub) -> None:
    objects = hub.reg.data_dir / "objects"
    for folder, reason in (
        (objects, "seems to be away"),
        (objects / "packs", "3 of 3 packs are missing"),
    ):
        folder.rename(hub.reg.data_dir / "elsewhere")
        with pytest.raises(StoreSeemsAway, match=reason):
            repair(hub.reg, read_data=True)
        (hub.reg.data_dir / "elsewhere").rename(folder)
    assert set(hub.states().values()) == {"ingested"}
    assert is_clean(hub.reg)


def test_only_the_damaged_tensors_of_a_damaged_pack_are_lost(hub: SmallHub) -> None:
    hub.flip_a_block("ann/base")
    assert repair(hub.reg) == Repaired()  # nobody has read the data yet
    done = repair(hub.reg, read_data=True)
    assert (done.damaged_packs, done.lost_tensors) == (1, 1)
    assert hub.states()[sha256_of(BASE)] == "lost"
    push_ingested(hub.reg, hub.ann, "ann/base", {PATH: BASE})
    assert hub.read("ann/base") == BASE
    assert hub.read("ann/tune") == TUNE
    assert is_clean(hub.reg)


def test_a_pack_cut_short_keeps_what_can_be_read(hub: SmallHub) -> None:
    key = pack_key(hub.pack_of("ann/base"))
    data = contents(hub.reg, key)
    hub.reg.store.put(key, [data[: len(data) // 2]])
    done = repair(hub.reg)
    assert done.damaged_packs == 1
    assert done.salvaged_tensors > 0
    with hub.reg.db.read() as session:
        states = select(Tensor.lost).join(Frame, Frame.tensor_id == Tensor.id).join(Pack)
        lost = session.scalars(states.where(Pack.state == "damaged")).all()
    assert lost
    assert None not in lost
    push_ingested(hub.reg, hub.ann, "ann/base", {PATH: BASE})
    assert hub.read("ann/base") == BASE
    collect(hub.reg)
    assert hub.read("ann/tune") == TUNE
    assert is_clean(hub.reg)


def run_fsck(reg: Registry, *options: str) -> Result:
    arguments = [*options, "--data-dir", str(reg.data_dir)]
    return CliRunner().invoke(maintenance.fsck, arguments, catch_exceptions=False)


def test_the_command_says_what_it_marked_and_what_is_lost(hub: SmallHub) -> None:
    hub.lose("ann/base")
    before = run_fsck(hub.reg)
    assert before.exit_code == 1
    assert "pack_missing" in before.stdout
    told = run_fsck(hub.reg, "--repair")
    assert told.exit_code == 1
    assert "packs marked as damaged: 1\n" in told.stdout
    assert f"file_lost: '{PATH}' of ann/base is lost: push it again (revisions: 1" in told.stdout
    assert "pack_missing" not in told.stdout
    again = json.loads(run_fsck(hub.reg, "--repair", "--json").stdout)
    assert again["repaired"]["lost_tensors"] == 0
    assert {each["code"] for each in again["findings"]} == {"file_lost"}


def test_the_command_refuses_a_store_that_seems_away(hub: SmallHub) -> None:
    for item in list(hub.reg.store.list("")):
        hub.reg.store.delete(item.key)
    refused = run_fsck(hub.reg, "--repair")
    assert refused.exit_code == 2
    assert "--accept-loss" in refused.stderr
    assert set(hub.states().values()) == {"ingested"}
    assert run_fsck(hub.reg, "--repair", "--accept-loss").exit_code == 1
    assert set(hub.states().values()) == {"lost"}


def test_a_base_that_is_lost_is_not_chosen_as_a_base(hub: SmallHub) -> None:
    hub.lose("ann/base")
    repair(hub.reg)
    other = tiny.to_file(tiny.finetune(2e-5))
    revision = push_ingested(hub.reg, hub.ann, "ann/other", {PATH: other}, base="ann/base")
    assert read_file(hub.reg, revision, PATH) == other
    reader = FileReader(hub.reg)
    for each in stored_tensors(hub.reg, revision).values():
        reader.read_tensor_into(each.id, 0, memoryview(bytearray(each.size)))


@pytest.mark.parametrize(
    "failpoint",
    [
        "repair.packs.before_commit",
        "repair.packs.after_commit",
        "repair.tensors.before_commit",
        "repair.tensors.after_commit",
    ],
)
def test_a_repair_that_is_killed_can_be_repeated(hub: SmallHub, failpoint: str) -> None:
    hub.lose("ann/base")
    hub.flip_a_block("ann/tune")
    command = ["-m", "deltahub.client.cli.main", "fsck", "--repair", "--read-data"]
    command += ["--data-dir", str(hub.reg.data_dir)]
    died = forked.run(*command, environment={"DELTAHUB_FAILPOINT": failpoint})
    assert died.returncode == -signal.SIGKILL
    assert forked.run(*command).returncode == 1
    states = {sha256_of(BASE): "lost", sha256_of(TUNE): "lost", sha256_of(NOTES): "ingested"}
    assert hub.states() == states
    collect(hub.reg)
    push_ingested(hub.reg, hub.ann, "ann/base", {PATH: BASE})
    push_ingested(hub.reg, hub.ann, "ann/tune", {PATH: TUNE})
    assert (hub.read("ann/base"), hub.read("ann/tune")) == (BASE, TUNE)
    assert is_clean(hub.reg)


def test_a_missing_pack_is_found_before_the_hub_says_that_it_has_a_file(hub: SmallHub) -> None:
    hub.lose("ann/base")
    asked = [(sha256_of(data), len(data)) for data in (TUNE, NOTES)]
    assert query_and_keep(hub.reg, hub.ann, "ann/tune", asked) == [sha256_of(NOTES)]
    assert hub.states()[sha256_of(BASE)] == "lost"
    with pytest.raises(UploadNotFound):
        commit(hub.reg, hub.ann, "ann/tune", "main", [CopyFile("copy", sha256_of(TUNE))])


def test_a_query_does_not_take_a_store_that_is_away_for_a_loss(hub: SmallHub) -> None:
    objects = hub.reg.data_dir / "objects"
    objects.rename(objects.with_name("elsewhere"))
    for ask in (
        lambda: query_and_keep(hub.reg, hub.ann, "ann/base", [(sha256_of(BASE), len(BASE))]),
        lambda: commit(hub.reg, hub.ann, "ann/base", "main", [CopyFile("c", sha256_of(BASE))]),
    ):
        with pytest.raises(StoreSeemsAway):
            ask()
    assert set(hub.states().values()) == {"ingested"}
