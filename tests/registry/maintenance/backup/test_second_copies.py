"""A pack that is damaged in the hub, with a second copy that is right, is backed up whole."""

from pathlib import Path

import pytest

from deltahub.registry import Registry
from deltahub.registry.maintenance.backup.run import backup
from deltahub.registry.storage.keys import pack_key
from support.registry.backing_up import findings, restored
from support.registry.collecting import is_clean
from support.registry.opened import caller, opened_registry
from support.registry.scrubbing import copies, copy_key_of, flip, scrubbed
from support.registry.small_hub import BASE, TUNE, SmallHub


@pytest.fixture
def pack(hub: SmallHub) -> str:
    """The base's pack, which has a second copy."""
    update = {"data_dir": hub.reg.data_dir, "second_copy_dependents": 1}
    with Registry.open(hub.reg.settings.model_copy(update=update)) as reg:
        scrubbed(reg)
    pack = hub.pack_of("ann/base")
    assert copies(hub.reg)[pack] == "live"
    return pack


@pytest.mark.parametrize("how", ["damaged", "missing"])
@pytest.mark.parametrize("has_earlier", [False, True])
def test_the_second_copy_is_backed_up_and_nothing_is_lost(
    hub: SmallHub, pack: str, tmp_path: Path, how: str, has_earlier: bool
) -> None:
    place = tmp_path / "place"
    if has_earlier:
        backup(hub.reg, str(place))
    if how == "damaged":
        flip(hub.reg, pack_key(pack))
    else:
        hub.lose("ann/base")
    outcome = backup(hub.reg, str(place), keep=1)
    assert outcome.snapshot.findings == ()
    assert outcome.pruned is not None
    if how == "missing" or not has_earlier:  # the bytes of what the place has are not read again
        (note,) = outcome.notes
        assert pack in note
    assert findings(place) == []
    assert restored(place, tmp_path / "elsewhere").missing == 0
    with opened_registry(tmp_path / "elsewhere") as reg:
        again = SmallHub(reg, caller(reg, "ann"), hub.revisions)
        assert again.read("ann/base") == BASE
        assert again.read("ann/tune") == TUNE
        assert is_clean(reg)


def test_a_second_copy_that_is_damaged_too_is_no_copy(
    hub: SmallHub, pack: str, tmp_path: Path
) -> None:
    flip(hub.reg, pack_key(pack))
    flip(hub.reg, copy_key_of(hub.reg, pack), at=5)
    (found,) = backup(hub.reg, str(tmp_path / "place")).snapshot.findings
    assert found.code == "object_damaged"
    assert pack in found.target
    assert restored(tmp_path / "place", tmp_path / "elsewhere").missing == 1
