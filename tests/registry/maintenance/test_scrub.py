"""scrub proves every object in turn, names what is damaged, and repairs what it can."""

import json
import signal
import subprocess
import sys
import time
from datetime import timedelta

import pytest
from blake3 import blake3
from click.testing import CliRunner, Result
from sqlalchemy import select, update

from deltahub.codecs.frames.pack import END_MAGIC
from deltahub.registry import Registry
from deltahub.registry.commands import scrub as command
from deltahub.registry.db.models import Landing, Pack, utc_now
from deltahub.registry.db.tables.scrub import FoundDamage
from deltahub.registry.errors import DataLost
from deltahub.registry.landings.damage import mark_damaged
from deltahub.registry.losses.presence import StoreSeemsAway
from deltahub.registry.losses.second_copies import ask_for_repair
from deltahub.registry.maintenance.fsck.findings import Finding
from deltahub.registry.maintenance.repair.run import repair
from deltahub.registry.maintenance.scrub.pace import Pace
from deltahub.registry.maintenance.scrub.run import Scrub
from deltahub.registry.replicas.copies import make_copy
from deltahub.registry.storage.keys import landing_key, pack_key
from support import forked
from support.registry.collecting import age_everything, collect, is_clean
from support.registry.ingested import push_ingested
from support.registry.opened import push, sha256_of, upload
from support.registry.scrubbing import (
    findings,
    flip,
    n_lost,
    names,
    pack_states,
    proofs,
    scrubbed,
    unreadable,
    uploads,
)
from support.registry.small_hub import BASE, NOTES, PATH, TUNE, SmallHub, contents


def test_every_object_is_proved_once_and_the_next_scrub_has_nothing_to_do(hub: SmallHub) -> None:
    begun = utc_now()
    upload(hub.reg, hub.ann, b"not committed yet")
    done = scrubbed(hub.reg)
    objects = list(hub.reg.store.list(""))
    assert (done.proved, done.n_found, done.is_done) == (len(objects), 0, True)
    assert done.proved_bytes == sum(item.size for item in objects)
    assert scrubbed(hub.reg, before=begun).proved == 0
    assert findings(hub.reg) == {}


def test_a_scrub_with_a_limit_goes_on_where_the_last_one_ended(hub: SmallHub) -> None:
    begun = utc_now()
    seen: list[set[tuple[str, str]]] = [set()]
    while len(proofs(hub.reg)) < 3:
        assert scrubbed(hub.reg, before=begun, limit_bytes=1).proved == 1
        seen.append(set(proofs(hub.reg)))
        assert len(seen[-1] - seen[-2]) == 1
    assert scrubbed(hub.reg, before=begun).proved == 0


def test_what_was_proved_longest_ago_comes_first(hub: SmallHub) -> None:
    old = hub.pack_of("ann/tune")
    with hub.reg.db.write() as session:
        past = utc_now() - timedelta(days=40)
        session.execute(update(Pack).where(Pack.id == old).values(created_at=past))
    scrubbed(hub.reg, limit_bytes=1)
    assert set(proofs(hub.reg)) == {("pack", old)}
    assert scrubbed(hub.reg, before=utc_now() - timedelta(days=30)).proved == 0


def test_a_changed_bit_of_a_base_names_all_files_that_need_it(hub: SmallHub) -> None:
    hub.flip_a_block("ann/base")
    done = scrubbed(hub.reg)
    assert [code for code, _ in done.found] == ["pack_hash"]
    assert findings(hub.reg) == {("pack", "pack_hash"): "open"}
    assert names(hub.reg) == {f"'{PATH}' of ann/base", f"'{PATH}' of ann/tune"}
    assert hub.states()[sha256_of(BASE)] == "lost"
    assert hub.read("ann/notes", "notes.txt") == NOTES
    push_ingested(hub.reg, hub.ann, "ann/base", {PATH: BASE})
    assert (hub.read("ann/base"), hub.read("ann/tune")) == (BASE, TUNE)
    assert is_clean(hub.reg)


def test_a_missing_pack_is_marked_and_right_again_when_it_comes_back(hub: SmallHub) -> None:
    key = pack_key(hub.pack_of("ann/base"))
    data = hub.lose("ann/base")
    assert scrubbed(hub.reg).restored.lost_tensors > 0
    assert set(hub.states().values()) == {"ingested", "lost"}
    hub.reg.store.put(key, [data])
    done = scrubbed(hub.reg)
    assert (done.restored.restored_packs, done.n_found) == (1, 0)
    assert findings(hub.reg) == {("pack", "pack_missing"): "repaired"}
    assert n_lost(hub.reg) == 0
    assert (hub.read("ann/base"), hub.read("ann/tune")) == (BASE, TUNE)
    assert is_clean(hub.reg)


def test_without_repair_only_findings_are_written(hub: SmallHub) -> None:
    hub.flip_a_block("ann/base")
    hub.lose("ann/tune")
    scrubbed(hub.reg, is_repairing=False)
    assert set(findings(hub.reg).values()) == {"open"}
    assert pack_states(hub.reg) == {"live"}
    assert n_lost(hub.reg) == 0


def test_the_public_twin_brings_a_private_tensor_back(hub: SmallHub) -> None:
    for name, private in (("ann/secret", True), ("ann/open", False)):
        hub.revisions[name] = push_ingested(
            hub.reg, hub.ann, name, {"notes.txt": NOTES * 3}, private=private
        )
    with hub.reg.db.read() as session:
        domains = set(session.scalars(select(Pack.domain_id)))
    assert len(domains) == 2
    with hub.reg.db.read() as session:
        secret = session.scalars(
            select(Pack.id).order_by(Pack.created_at.desc(), Pack.id).limit(2)
        ).all()
    for pack in secret:
        hub.reg.store.delete(pack_key(pack))
        done = scrubbed(hub.reg)
        assert done.restored.tensors_from_elsewhere > 0
        assert n_lost(hub.reg) == 0
        for name in ("ann/secret", "ann/open"):
            assert hub.read(name, "notes.txt") == NOTES * 3
    collect(hub.reg)
    assert is_clean(hub.reg)


def test_a_lost_file_is_read_from_an_upload_that_is_still_there(hub: SmallHub) -> None:
    upload(hub.reg, hub.ann, BASE)
    hub.lose("ann/base")
    # The upload itself brought nothing back, because nothing was marked when it came.
    assert scrubbed(hub.reg).restored.files_from_uploads == 1
    assert hub.read("ann/base") == BASE


@pytest.mark.parametrize("how", ["flip", "delete"])
def test_a_damaged_upload_is_marked(hub: SmallHub, how: str) -> None:
    push(hub.reg, hub.ann, "ann/new", {"new.bin": b"new bytes" * 999})
    [landing] = uploads(hub.reg)
    if how == "flip":
        flip(hub.reg, landing_key(landing))
    else:
        hub.reg.store.delete(landing_key(landing))
    code = "landing_hash" if how == "flip" else "landing_missing"
    assert [found for found, _ in scrubbed(hub.reg).found] == [code]
    assert findings(hub.reg) == {("landing", code): "open"}
    assert names(hub.reg) == {"'new.bin' of ann/new"}
    with hub.reg.db.read() as session:
        assert session.get_one(Landing, landing).state == "damaged"


def test_an_upload_that_was_pushed_again_since_it_was_read_is_not_marked(
    hub: SmallHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = b"new bytes" * 999
    push(hub.reg, hub.ann, "ann/new", {"new.bin": data})
    [landing] = uploads(hub.reg)
    flip(hub.reg, landing_key(landing))
    found = Scrub._found

    def pushed_first(self: Scrub, kind: str, damage: Finding) -> None:
        mark_damaged(hub.reg, landing, "a reader met it")
        upload(hub.reg, hub.ann, data)
        found(self, kind, damage)

    monkeypatch.setattr(Scrub, "_found", pushed_first)
    scrubbed(hub.reg)
    assert uploads(hub.reg) == [landing]
    assert is_clean(hub.reg)


def test_a_damaged_upload_whose_bytes_are_right_again_loses_its_mark(hub: SmallHub) -> None:
    push(hub.reg, hub.ann, "ann/new", {"new.bin": b"new bytes" * 999})
    [landing] = uploads(hub.reg)
    flip(hub.reg, landing_key(landing))
    assert scrubbed(hub.reg).n_found == 1
    assert uploads(hub.reg) == []
    flip(hub.reg, landing_key(landing))
    done = scrubbed(hub.reg)
    assert (done.n_found, done.restored.restored_uploads) == (0, 1)
    assert uploads(hub.reg) == [landing]
    assert set(findings(hub.reg).values()) == {"repaired"}
    assert is_clean(hub.reg)


def test_a_reader_that_meets_damage_notes_it_and_the_next_scrub_begins_there(
    hub: SmallHub,
) -> None:
    scrubbed(hub.reg)
    begun = utc_now()
    hub.flip_a_block("ann/base")
    with pytest.raises(DataLost):
        hub.read("ann/base")
    assert findings(hub.reg) == {("tensor", "tensor_unreadable"): "open"}
    done = scrubbed(hub.reg, before=begun - timedelta(days=1))
    assert [code for code, _ in done.found] == ["pack_hash"]
    push_ingested(hub.reg, hub.ann, "ann/base", {PATH: BASE})
    assert findings(hub.reg)["tensor", "tensor_unreadable"] == "repaired"


def test_fsck_writes_findings_too_and_they_end_with_the_object(hub: SmallHub) -> None:
    hub.flip_a_block("ann/base")
    repair(hub.reg, read_data=True)
    assert findings(hub.reg) == {("pack", "pack_hash"): "open"}
    push_ingested(hub.reg, hub.ann, "ann/base", {PATH: BASE})
    with hub.reg.db.write() as session:  # as if all of the pack had been stored again
        damaged = session.scalars(select(Pack).where(Pack.state == "damaged")).one()
        damaged.state, damaged.condemned_at = "condemned", utc_now()
    scrubbed(hub.reg)
    assert findings(hub.reg) == {("pack", "pack_hash"): "gone"}


def test_decoding_finds_what_the_hashes_of_packs_cannot(hub: SmallHub) -> None:
    """A pack whose row has the hash of damaged bytes: written by a machine with bad memory."""
    pack = hub.pack_of("ann/base")
    hub.flip_a_block("ann/base")
    data = bytearray(contents(hub.reg, pack_key(pack)))
    n_tail = 32 + len(END_MAGIC)  # the hash of all before, and the magic
    data[-n_tail : -len(END_MAGIC)] = blake3(bytes(data[:-n_tail])).digest()
    hub.reg.store.put(pack_key(pack), [bytes(data)])
    with hub.reg.db.write() as session:
        session.get_one(Pack, pack).hash = blake3(bytes(data)).digest()
    assert scrubbed(hub.reg).n_found == 0
    done = scrubbed(hub.reg, is_decoding=True)
    assert {code for code, _ in done.found} == {"tensor_unreadable"}
    assert hub.states()[sha256_of(BASE)] == "lost"


def test_a_store_that_is_away_does_not_look_like_loss(hub: SmallHub) -> None:
    objects = hub.reg.data_dir / "objects"
    for folder in (objects, objects / "packs"):
        folder.rename(hub.reg.data_dir / "elsewhere")
        with pytest.raises(StoreSeemsAway):
            scrubbed(hub.reg)
        (hub.reg.data_dir / "elsewhere").rename(folder)
    assert set(hub.states().values()) == {"ingested"}
    assert pack_states(hub.reg) == {"live"}
    assert is_clean(hub.reg)


def test_an_object_that_the_disk_cannot_read_is_a_finding_and_the_rest_goes_on(
    hub: SmallHub,
) -> None:
    pack = hub.pack_of("ann/base")
    with hub.reg.db.write() as session:
        past = utc_now() - timedelta(days=1)
        session.execute(update(Pack).where(Pack.id == pack).values(created_at=past))
    with unreadable(pack_key(pack)):
        done = scrubbed(hub.reg)
    assert (done.proved, [code for code, _ in done.found]) == (2, ["object_unreadable"])
    assert pack_states(hub.reg) == {"live"}
    scrubbed(hub.reg)
    assert set(findings(hub.reg).values()) == {"repaired"}


def run_scrub(reg: Registry, *options: str) -> Result:
    arguments = [*options, "--data-dir", str(reg.data_dir)]
    return CliRunner().invoke(command.scrub, arguments, catch_exceptions=False)


def test_the_command_says_what_it_read_found_and_did(hub: SmallHub) -> None:
    fresh = run_scrub(hub.reg)
    assert (fresh.exit_code, fresh.stdout) == (
        0,
        "objects that are right: 0 (0 B)\nno open findings\n",
    )
    assert "objects that are right: 3 (" in run_scrub(hub.reg, "--all").stdout
    hub.lose("ann/base")
    told = run_scrub(hub.reg, "--all", "--decode", "--max-mb-per-s", "500")
    assert told.exit_code == 1
    assert "pack_missing: the object of pack" in told.stdout
    assert f"  needed by '{PATH}' of ann/tune\n" in told.stdout
    listed = run_scrub(hub.reg, "--findings", "--json")
    assert listed.exit_code == 1
    [found] = json.loads(listed.stdout)["findings"]
    assert (found["code"], found["n_files"]) == ("pack_missing", 2)
    outcome = json.loads(run_scrub(hub.reg, "--share", "0.5", "--json").stdout)["outcome"]
    assert outcome["proved"] + outcome["n_found"] >= 1
    assert run_scrub(hub.reg, "--older-than", "soon").exit_code == 2
    age_everything(hub.reg, 0)
    assert "due are" in run_scrub(hub.reg, "--limit-bytes", "1", "--older-than", "0min").stdout


def test_the_command_tells_each_damage_once_and_counts_what_it_changed(hub: SmallHub) -> None:
    push(hub.reg, hub.ann, "ann/new", {"new.bin": b"new bytes" * 999})
    [landing] = uploads(hub.reg)
    cut, lost = hub.pack_of("ann/tune"), hub.pack_of("ann/base")
    hub.reg.store.put(pack_key(cut), [contents(hub.reg, pack_key(cut))[:-9]])
    flip(hub.reg, pack_key(lost))
    flip(hub.reg, landing_key(landing))
    words = ["-m", "deltahub.client.cli.main", "scrub", "--all"]
    words += ["--data-dir", str(hub.reg.data_dir)]
    told = forked.run(*words)
    assert told.stderr == "proving stored bytes\n"
    assert "packs marked as damaged: 2\n" in told.stdout
    for name in (cut, lost, sha256_of(b"new bytes" * 999)):
        [line] = [line for line in told.stdout.splitlines() if name in line]
        assert line.count(name) == 1
    assert "open findings: 3\n" in told.stdout
    again = forked.run(*words)
    assert "marked as damaged" not in again.stdout
    assert "open findings: 3\n" in again.stdout


def test_the_command_tells_damage_that_it_has_put_right(hub: SmallHub) -> None:
    pack = hub.pack_of("ann/base")
    assert make_copy(hub.reg, pack)
    flip(hub.reg, pack_key(pack))
    told = run_scrub(hub.reg, "--all").stdout
    assert told.startswith(f"pack_hash: the bytes of pack {pack} have changed\n")
    assert told.count(pack) == 1
    assert "packs put back from their second copies: 1\n" in told


def test_the_finding_of_a_reader_names_its_pack_once(hub: SmallHub) -> None:
    pack = hub.pack_of("ann/base")
    ask_for_repair(hub.reg, pack, DataLost(f"pack {pack}: block 7 has a wrong guard"))
    [found] = json.loads(run_scrub(hub.reg, "--findings", "--json").stdout)["findings"]
    assert found["text"] == f"pack {pack}: block 7 has a wrong guard"


def test_the_command_ends_soon_when_it_is_asked_to(hub: SmallHub) -> None:
    words = [sys.executable, "-m", "deltahub.client.cli.main", "scrub", "--all", "--json"]
    words += ["--max-mb-per-s", "0.05", "--data-dir", str(hub.reg.data_dir)]
    running = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stderr is not None
    assert running.stderr.readline() == "proving stored bytes\n"
    running.send_signal(signal.SIGTERM)
    began = time.monotonic()
    stdout, _ = running.communicate(timeout=30)
    assert time.monotonic() - began < 5
    outcome = json.loads(stdout)["outcome"]
    assert outcome["is_stopped"]
    assert outcome["left"] > 0


def test_a_pace_bounds_the_bytes_of_a_second() -> None:
    pace = Pace(mb_per_s=10)
    began = time.monotonic()
    for _ in range(8):
        pace.take(500_000)
    assert time.monotonic() - began > 0.3


@pytest.mark.parametrize("failpoint", ["scrub.mark.before_commit", "scrub.mark.after_commit"])
def test_a_scrub_that_is_killed_goes_on_where_it_was(hub: SmallHub, failpoint: str) -> None:
    hub.lose("ann/base")
    words = ["-m", "deltahub.client.cli.main", "scrub", "--all"]
    words += ["--data-dir", str(hub.reg.data_dir)]
    died = forked.run(*words, environment={"DELTAHUB_FAILPOINT": failpoint})
    assert died.returncode == -signal.SIGKILL
    assert forked.run(*words).returncode == 1
    assert hub.states()[sha256_of(BASE)] == "lost"
    push_ingested(hub.reg, hub.ann, "ann/base", {PATH: BASE})
    assert (hub.read("ann/base"), hub.read("ann/tune")) == (BASE, TUNE)
    collect(hub.reg)
    assert is_clean(hub.reg)


def test_a_finding_that_comes_again_is_open_again(hub: SmallHub) -> None:
    key = pack_key(hub.pack_of("ann/tune"))
    data = hub.lose("ann/tune")
    for _ in range(2):
        hub.reg.store.delete(key)
        scrubbed(hub.reg)
        assert findings(hub.reg) == {("pack", "pack_missing"): "open"}
        hub.reg.store.put(key, [data])
        scrubbed(hub.reg)
        assert findings(hub.reg) == {("pack", "pack_missing"): "repaired"}
    with hub.reg.db.read() as session:
        row = session.scalars(select(FoundDamage)).one()
    assert row.how == "its bytes are right again"


def test_a_stopped_scrub_counts_the_object_in_hand_as_not_read(hub: SmallHub) -> None:
    pace = Pace()
    work = Scrub(hub.reg, pace, progress=lambda due: pace.stop())
    assert work.run(utc_now()).is_stopped
    assert proofs(hub.reg) == {}
