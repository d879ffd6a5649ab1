"""On a store that fails now and then, no acknowledged byte is lost, and nothing is believed lost.

DELTAHUB_FAULT_EXAMPLES=500 DELTAHUB_FAULT_STEPS=60 look longer; --hypothesis-seed=N draws the same
again. tests/s3/test_faults.py does it on SeaweedFS.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from deltahub.registry.storage.base import ObjectNotFound, Store, StoreUnavailable
from deltahub.registry.storage.local import FileStore
from deltahub.registry.storage.memory import MemoryStore
from support.stores.fault_machine import FaultMachine, profile
from support.stores.faulty_store import Faults, FaultyStore
from support.stores.store_contract import StoreContract, read_all


class TestFaultyStoreWithoutFaults(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> FaultyStore:
        return FaultyStore(FileStore(tmp_path / "objects"), Faults(0))


class MachineInMemory(FaultMachine):
    def store_settings(self) -> dict[str, str]:
        return {"store_url": "s3://memory/hub"}  # no folder

    def make_store(self) -> Callable[[], Store]:
        store = MemoryStore()  # it outlives the registry
        return lambda: store


TestFaultsOfAFolder = FaultMachine.TestCase
TestFaultsOfAFolder.settings = profile(5)
TestFaultsInMemory = MachineInMemory.TestCase
TestFaultsInMemory.settings = profile(6)


def test_every_fault_comes_and_none_changes_what_was_put() -> None:
    faults = Faults(seed=1, rate=0.3)
    inner = MemoryStore()
    store = FaultyStore(inner, faults)
    acknowledged: dict[str, bytes] = {}
    for i in range(1000):
        key, data = f"landing/{i % 50}", b"%d" % i
        with suppress(StoreUnavailable):
            list(store.list(""))
        with suppress(StoreUnavailable):
            if key in acknowledged:
                assert read_all(store, key) == acknowledged[key]
        acknowledged.pop(key, None)  # what is there is not known until the store has answered
        with suppress(StoreUnavailable):
            if i % 3 == 0:
                store.delete(key)
                with pytest.raises(ObjectNotFound):
                    inner.size(key)
            elif i % 3 == 1:
                store.put(key, [data])
                acknowledged[key] = data
            else:
                store.put_together({key: data, f"{key}/b": data})
                acknowledged[key] = data
    assert acknowledged
    assert {key: read_all(inner, key) for key in acknowledged} == acknowledged
    assert set(faults.seen) == {
        "refused", "throttled", "short", "half", "lost", "listed late", "listed still",
    }  # fmt: skip
