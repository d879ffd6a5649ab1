"""gc beside pushes and readers, without grace or lease to protect them."""

import random
import threading
from pathlib import Path

from deltahub.registry import Registry
from deltahub.registry.catalog.repositories import delete_repository
from deltahub.registry.errors import NotFound
from deltahub.registry.maintenance.fsck.run import fsck
from deltahub.registry.maintenance.gc.apply import apply_gc
from deltahub.registry.maintenance.gc.plan import plan_gc
from support.registry.ingested import push_ingested, read_file, run_replans
from support.registry.opened import caller, opened_registry

ROUNDS = 12
SHARED = random.Random(0).randbytes(30_000)


def test_pushes_beside_gc_lose_nothing(tmp_path: Path) -> None:
    """The same bytes are pushed and deleted all the time, with no grace and no lease."""
    done = threading.Event()
    errors: list[BaseException] = []

    def collect(reg: Registry) -> None:
        try:
            while not done.is_set():
                apply_gc(reg, plan_gc(reg, lease_s=0, grace_s=0))
        except BaseException as exc:
            errors.append(exc)

    with opened_registry(tmp_path, upload_ttl_s=60) as reg:
        ann = caller(reg, "ann")
        collector = threading.Thread(target=collect, args=(reg,))
        collector.start()
        kept: dict[int, bytes] = {}
        try:
            for number in range(ROUNDS):
                own = random.Random(number + 1).randbytes(20_000)
                files = {"shared.bin": SHARED, "own.bin": own}
                revision = push_ingested(reg, ann, f"ann/m{number}", files)
                run_replans(reg)
                assert read_file(reg, revision, "shared.bin") == SHARED
                if number % 3 == 0:
                    kept[revision] = own
                else:
                    delete_repository(reg, ann, f"ann/m{number}")
        finally:
            done.set()
            collector.join()
        assert errors == []
        for _ in range(2):
            apply_gc(reg, plan_gc(reg, lease_s=0, grace_s=0))
        for revision, own in kept.items():
            assert read_file(reg, revision, "own.bin") == own
            assert read_file(reg, revision, "shared.bin") == SHARED
        assert list(fsck(reg, read_data=True)) == []
        stored = sum(item.size for item in reg.store.list("packs/"))
        assert stored < len(SHARED) + 20_000 * len(kept) + 40_000


def test_readers_beside_gc_get_their_bytes_or_are_told_that_the_file_is_gone(
    tmp_path: Path,
) -> None:
    done = threading.Event()
    wrong: list[object] = []

    def read(reg: Registry, revision: int) -> None:
        while not done.is_set():
            try:
                if read_file(reg, revision, "shared.bin") != SHARED:
                    wrong.append("other bytes")
            except NotFound as exc:
                wrong.append(exc)  # it is never deleted

    with opened_registry(tmp_path) as reg:
        ann = caller(reg, "ann")
        filler = {f"{n}.bin": random.Random(n).randbytes(20_000) for n in range(8)}
        push_ingested(reg, ann, "ann/all", {"shared.bin": SHARED, **filler})
        revision = push_ingested(reg, ann, "ann/kept", {"shared.bin": SHARED})
        delete_repository(reg, ann, "ann/all")
        reader = threading.Thread(target=read, args=(reg, revision))
        reader.start()
        try:
            for _ in range(3):  # deletes rows, repacks the sparse pack, deletes the old one
                apply_gc(reg, plan_gc(reg, lease_s=0, grace_s=0))
        finally:
            done.set()
            reader.join()
        assert wrong == []
