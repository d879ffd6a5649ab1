"""What many files depend on has a second copy, and comes back from it."""

import signal
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from deltahub.registry import Registry
from deltahub.registry.catalog.repositories import delete_repository
from deltahub.registry.db.models import Frame, Pack
from deltahub.registry.errors import DataLost
from deltahub.registry.losses.presence import StoreSeemsAway
from deltahub.registry.maintenance.fsck.run import fsck
from deltahub.registry.maintenance.repair.run import repair
from deltahub.registry.storage.keys import pack_key, second_copy_key
from deltahub.registry.uploads.known_files import query_and_keep
from support import forked
from support.registry.collecting import collect, is_clean
from support.registry.opened import sha256_of
from support.registry.scrubbing import (
    copies,
    copy_key_of,
    findings,
    flip,
    n_lost,
    pack_states,
    scrubbed,
)
from support.registry.small_hub import BASE, NOTES, PATH, TUNE, SmallHub, contents


@pytest.fixture
def copied(hub: SmallHub) -> SmallHub:
    """The hub with a second copy of its base's pack, which one file depends on."""
    with opened_again(hub.reg, 1) as reg:
        twin = SmallHub(reg, hub.ann, hub.revisions)
        assert scrubbed(reg).restored.copies == 1
    assert copies(hub.reg) == {hub.pack_of("ann/base"): "live"}
    return SmallHub(hub.reg, twin.ann, twin.revisions)


def opened_again(reg: Registry, dependents: int) -> Registry:
    chosen = {"data_dir": reg.data_dir, "second_copy_dependents": dependents}
    return Registry.open(reg.settings.model_copy(update=chosen))


FILES = [("ann/base", PATH, BASE), ("ann/tune", PATH, TUNE), ("ann/notes", "notes.txt", NOTES)]
Damage = Callable[[Registry, str], None]
DAMAGES: dict[str, Damage] = {
    "flipped": flip,
    "deleted": lambda reg, key: reg.store.delete(key),
    "cut": lambda reg, key: reg.store.put(key, [contents(reg, key)[:-9]]),
}


def test_a_pack_and_its_copy_that_are_damaged_in_other_frames_lose_nothing(
    copied: SmallHub,
) -> None:
    pack = copied.pack_of("ann/base")
    with copied.reg.db.read() as session:
        frames = session.scalars(
            select(Frame).where(Frame.pack_id == pack).order_by(Frame.offset)
        ).all()
    for key, frame in ((pack_key(pack), frames[-1]), (copy_key_of(copied.reg, pack), frames[0])):
        data = bytearray(contents(copied.reg, key))
        data[frame.offset + frame.length - 20] ^= 4
        copied.reg.store.put(key, [bytes(data)])
    assert (copied.read("ann/base"), copied.read("ann/tune")) == (BASE, TUNE)
    done = scrubbed(copied.reg)
    assert (done.restored.lost_tensors, n_lost(copied.reg)) == (0, 0)
    assert (copied.read("ann/base"), copied.read("ann/tune")) == (BASE, TUNE)


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_pack_comes_back_from_its_copy(copied: SmallHub, how: str) -> None:
    pack = copied.pack_of("ann/base")
    DAMAGES[how](copied.reg, pack_key(pack))
    done = scrubbed(copied.reg)
    assert (done.n_found, done.restored.packs_from_copies) == (1, 1)
    assert (done.restored.lost_tensors, pack_states(copied.reg)) == (0, {"live"})
    assert set(findings(copied.reg).values()) == {"repaired"}
    assert (copied.read("ann/base"), copied.read("ann/tune")) == (BASE, TUNE)
    assert is_clean(copied.reg)


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_copy_is_written_again(copied: SmallHub, how: str) -> None:
    pack = copied.pack_of("ann/base")
    DAMAGES[how](copied.reg, copy_key_of(copied.reg, pack))
    [found] = {each.code for each in fsck(copied.reg, read_data=True)}
    assert found == {"flipped": "copy_hash", "deleted": "copy_missing", "cut": "copy_size"}[how]
    assert scrubbed(copied.reg).restored.copies == 1
    assert set(findings(copied.reg).values()) == {"repaired"}
    assert contents(copied.reg, copy_key_of(copied.reg, pack)) == contents(
        copied.reg, pack_key(pack)
    )
    assert is_clean(copied.reg)


@pytest.mark.parametrize("how", DAMAGES)
def test_a_reader_gets_the_right_bytes_from_the_copy(copied: SmallHub, how: str) -> None:
    pack = copied.pack_of("ann/base")
    DAMAGES[how](copied.reg, pack_key(pack))
    assert (copied.read("ann/base"), copied.read("ann/tune")) == (BASE, TUNE)
    assert n_lost(copied.reg) == 0
    asked = [(sha256_of(data), len(data)) for data in (BASE, TUNE)]
    assert len(query_and_keep(copied.reg, copied.ann, "ann/base", asked)) == 2
    assert n_lost(copied.reg) == 0
    assert scrubbed(copied.reg).restored.packs_from_copies == 1
    assert set(findings(copied.reg).values()) == {"repaired"}
    assert is_clean(copied.reg)


def test_fsck_repair_puts_a_pack_back_too_and_takes_older_marks_away(copied: SmallHub) -> None:
    pack = copied.pack_of("ann/base")
    copied.reg.store.delete(pack_key(pack))
    kept = contents(copied.reg, copy_key_of(copied.reg, pack))
    copied.reg.store.delete(copy_key_of(copied.reg, pack))
    repair(copied.reg)
    assert n_lost(copied.reg) > 0
    copied.reg.store.put(copy_key_of(copied.reg, pack), [kept])
    assert repair(copied.reg).packs_from_copies == 1
    assert (n_lost(copied.reg), pack_states(copied.reg)) == (0, {"live"})
    assert is_clean(copied.reg)


def test_a_pack_and_a_copy_that_are_both_damaged_are_a_loss(copied: SmallHub) -> None:
    pack = copied.pack_of("ann/base")
    flip(copied.reg, copy_key_of(copied.reg, pack))
    copied.reg.store.delete(pack_key(pack))
    done = scrubbed(copied.reg)
    assert done.restored.packs_from_copies == 0
    assert n_lost(copied.reg) > 0
    with pytest.raises(DataLost):
        copied.read("ann/base")
    assert {code for code, state in findings(copied.reg).items() if state == "open"} == {
        ("pack", "pack_missing"),
        ("copy", "copy_hash"),
    }


def test_a_damaged_pack_is_not_copied(hub: SmallHub) -> None:
    pack = hub.pack_of("ann/base")
    hub.flip_a_block("ann/base")
    with opened_again(hub.reg, 1) as reg:
        scrubbed(reg)
        assert pack not in copies(reg)


def test_gc_keeps_a_copy_while_half_of_the_files_need_it(copied: SmallHub) -> None:
    pack = copied.pack_of("ann/base")
    for dependents, is_kept in ((2, True), (3, False)):
        with opened_again(copied.reg, dependents) as reg:
            collect(reg)
            assert (pack in copies(reg)) == is_kept
    assert not any(item.key.startswith("copies/") for item in copied.reg.store.list(""))
    assert is_clean(copied.reg)


def test_gc_keeps_the_copy_of_a_pack_that_does_not_check(copied: SmallHub) -> None:
    flip(copied.reg, pack_key(copied.pack_of("ann/base")))
    with opened_again(copied.reg, 0) as reg:
        outcome = collect(reg)
        assert outcome.copies == 0
        assert "run deltahub scrub" in outcome.notes[0]
    assert scrubbed(copied.reg).restored.packs_from_copies == 1


def test_a_copy_goes_with_its_pack(copied: SmallHub) -> None:
    for name in ("ann/base", "ann/tune"):
        delete_repository(copied.reg, copied.ann, name)
    collect(copied.reg)
    collect(copied.reg)
    assert copies(copied.reg) == {}
    assert not any(item.key.startswith("copies/") for item in copied.reg.store.list(""))
    assert is_clean(copied.reg)


def test_a_copy_that_no_row_knows_is_reported(copied: SmallHub) -> None:
    copied.reg.store.put(second_copy_key("ab" * 16), [b"who wrote this?"])
    assert [each.code for each in fsck(copied.reg)] == ["unknown_object"]


@pytest.mark.parametrize(
    "failpoint",
    ["copies.before_put", "copies.after_put", "copies.before_commit", "copies.after_commit"],
)
def test_a_copy_whose_writer_is_killed_is_made_by_the_next_scrub(
    hub: SmallHub, failpoint: str
) -> None:
    assert killed(hub, failpoint, "scrub", "--all")
    if failpoint != "copies.after_commit":
        assert "live" not in copies(hub.reg).values()
    with opened_again(hub.reg, 1) as reg:
        scrubbed(reg)
    assert copies(hub.reg) == {hub.pack_of("ann/base"): "live"}
    assert is_clean(hub.reg)


@pytest.mark.parametrize("failpoint", ["copies.pack_restored", "scrub.unmark.before_tensors"])
def test_a_repair_that_is_killed_is_done_by_the_next_scrub(
    copied: SmallHub, failpoint: str
) -> None:
    pack = copied.pack_of("ann/base")
    kept = contents(copied.reg, copy_key_of(copied.reg, pack))
    for key in (pack_key(pack), copy_key_of(copied.reg, pack)):
        copied.reg.store.delete(key)
    repair(copied.reg)
    copied.reg.store.put(copy_key_of(copied.reg, pack), [kept])
    assert killed(copied, failpoint, "scrub", "--all")
    scrubbed(copied.reg)
    assert (n_lost(copied.reg), pack_states(copied.reg)) == (0, {"live"})
    assert (copied.read("ann/base"), copied.read("ann/tune")) == (BASE, TUNE)
    assert is_clean(copied.reg)


@pytest.mark.parametrize("failpoint", ["copies.after_condemn", "copies.after_delete"])
def test_a_copy_whose_deletion_is_killed_is_deleted_by_the_next_gc(
    copied: SmallHub, failpoint: str
) -> None:
    assert killed(copied, failpoint, "gc", "--apply", dependents=0)
    assert copied.read("ann/tune") == TUNE
    collect(copied.reg)
    assert copies(copied.reg) == {}
    assert is_clean(copied.reg)


def test_a_pack_with_wrong_rows_is_not_called_repaired(copied: SmallHub) -> None:
    """Its bytes are right, so the copy's bytes mend nothing."""
    pack = copied.pack_of("ann/base")
    with copied.reg.db.write() as session:
        frame = session.scalars(select(Frame).where(Frame.pack_id == pack)).first()
        assert frame is not None
        frame.length -= 1
    for _ in range(2):
        done = scrubbed(copied.reg)
        assert [code for code, _ in done.found] == ["pack_index"]
        assert (done.restored.packs_from_copies, pack_states(copied.reg)) == (0, {"live"})
        assert findings(copied.reg) == {("pack", "pack_index"): "open"}


def killed(hub: SmallHub, failpoint: str, *words: str, dependents: int = 1) -> bool:
    """Whether the command died at the failpoint."""
    line = ["-m", "deltahub.client.cli.main", *words, "--data-dir", str(hub.reg.data_dir)]
    environment = {"DELTAHUB_FAILPOINT": failpoint}
    environment["DELTAHUB_SECOND_COPY_DEPENDENTS"] = str(dependents)
    died = forked.run(*line, environment=environment)
    return died.returncode == -signal.SIGKILL


@settings(
    max_examples=10,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
)
@given(
    damage=st.lists(
        st.tuples(st.integers(0, 99), st.sampled_from(sorted(DAMAGES)), st.integers(0, 9999)),
        min_size=1,
        max_size=4,
    )
)
def test_whatever_is_damaged_every_readable_file_is_right(
    copied: SmallHub, damage: list[tuple[int, str, int]]
) -> None:
    reg = copied.reg
    before = {item.key: contents(reg, item.key) for item in reg.store.list("")}
    with opened_again(reg, 1) as scrubbing:
        try:
            for which, how, at in damage:
                do_damage(reg, before, which, how, at)
            check_files(copied, is_judged=scrubbed_as_far_as_possible(scrubbing))
        finally:  # also for the next example
            for key, data in before.items():
                reg.store.put(key, [data])
            scrubbed(scrubbing)
        assert set(copied.states().values()) == {"ingested"}
        assert is_clean(reg)


def do_damage(reg: Registry, before: dict[str, bytes], which: int, how: str, at: int) -> None:
    key = sorted(before)[which % len(before)]
    if how == "flipped":
        data = bytearray(before[key])
        data[at % len(data)] ^= 1 << at % 8
        reg.store.put(key, [bytes(data)])
    elif how == "deleted":
        reg.store.delete(key)
    else:
        reg.store.put(key, [before[key][: at % len(before[key])]])


def scrubbed_as_far_as_possible(reg: Registry) -> bool:
    """Scrub; whether it judged what is missing."""
    try:
        scrubbed(reg)
    except StoreSeemsAway:  # more than half of the live packs are gone
        with reg.db.read() as session:
            live = session.scalars(select(Pack.id).where(Pack.state == "live")).all()
        there = {item.key for item in reg.store.list("packs/")}
        assert 2 * sum(pack_key(pack) in there for pack in live) < len(live)
        return False
    return True


def check_files(hub: SmallHub, *, is_judged: bool) -> None:
    """Each file is right or called lost."""
    states = hub.states()
    for name, path, data in FILES:
        try:
            assert hub.read(name, path) == data
        except DataLost:
            assert states[sha256_of(data)] == "lost" or not is_judged, name
        else:
            assert states[sha256_of(data)] == "ingested" or not is_judged, name
