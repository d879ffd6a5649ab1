"""A copy that is killed at any step leaves a whole hub, and goes on when it is run again."""

import json
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from deltahub.registry import Caller, Registry, failpoints
from deltahub.registry.storage.keys import pack_key
from support.registry.opened import caller, opened_registry, push
from support.registry.small_hub import BASE, NOTES, PATH, TUNE, SmallHub, contents, fill
from support.service.seaweedfs import S3Service
from support.service.store_commands import output_of, run_command

FILES = {"ann/notes": ("notes.txt", NOTES), "ann/base": (PATH, BASE), "ann/tune": (PATH, TUNE)}
POINTS = [name for name in failpoints.ALL if name.startswith("move.")]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    folder = tmp_path_factory.mktemp("moved")
    with opened_registry(folder) as reg:
        ann = caller(reg, "ann")
        revisions = fill(reg, ann)
        push(reg, ann, "ann/landed", {"x.bin": bytes(range(256)) * 40_000})
    return folder / "data", revisions


class Moved:
    """A hub in a folder of the test, whose objects move."""

    def __init__(
        self, folder: Path, revisions: dict[str, int], environment: Mapping[str, str]
    ) -> None:
        self.folder = folder
        self.data_dir = folder / "data"
        self.environment = environment
        self._revisions = revisions

    def hub(self, reg: Registry, ann: Caller) -> SmallHub:
        return SmallHub(reg, ann, self._revisions)

    def check(self) -> None:
        with opened_registry(self.folder) as reg:
            hub = self.hub(reg, caller(reg, "ann"))
            for name, (path, data) in FILES.items():
                assert hub.read(name, path) == data
        assert self.run("fsck", "--read-data") == "clean\n"

    def run(self, *arguments: str) -> str:
        return output_of(self.data_dir, *arguments, environment=self.environment)

    def copy(self, to: str, *more: str) -> dict[str, object]:
        done = self.run("store", "copy", "--to", to, "--json", *more)
        result: dict[str, object] = json.loads(done)
        return result


@pytest.fixture
def moved(
    filled: tuple[Path, dict[str, int]], service: S3Service, store_url: str, tmp_path: Path
) -> Moved:
    shutil.copytree(filled[0], tmp_path / "data")
    return Moved(tmp_path, filled[1], service.environment)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("point", POINTS)
def test_a_copy_that_is_killed_goes_on(moved: Moved, store_url: str, point: str) -> None:
    environment = {**moved.environment, "DELTAHUB_READ_LEASE_S": "0"}
    arguments = ("store", "copy", "--to", store_url, "--delete-source")
    # The second object, so that the copy is half done.
    times = ":2" if point.startswith("move.object") else ""
    killed = run_command(
        moved.data_dir, *arguments, environment=environment, failpoint=point + times
    )
    assert killed.returncode == -9, (killed.stdout, killed.stderr)
    moved.check()
    output_of(moved.data_dir, *arguments, environment=environment)
    left = [path for path in (moved.data_dir / "objects").rglob("[0-9a-z]*") if path.is_file()]
    assert left == []
    moved.check()


def test_a_copy_tells_each_step_once(moved: Moved, store_url: str) -> None:
    copied = run_command(
        moved.data_dir, "store", "copy", "--to", store_url, "--delete-source",
        environment={**moved.environment, "DELTAHUB_READ_LEASE_S": "4"},
    )  # fmt: skip
    assert copied.returncode == 0, copied.stderr
    assert copied.stderr.count("waiting until") == 1
    assert copied.stderr.count(f"the hub uses {store_url} now") == 1


def test_a_copy_that_was_given_up_can_be_begun_again(moved: Moved, store_url: str) -> None:
    killed = run_command(
        moved.data_dir, "store", "copy", "--to", store_url,
        environment=moved.environment, failpoint="move.object.after_proof:2",
    )  # fmt: skip
    assert killed.returncode == -9
    assert f"a copy is half done to {store_url}" in moved.run("store", "show")
    elsewhere = run_command(
        moved.data_dir, "store", "copy", "--to", f"{store_url}/2", environment=moved.environment
    )
    assert elsewhere.returncode == 1
    assert "--abort" in elsewhere.stderr
    assert "gave up" in moved.run("store", "copy", "--abort")
    moved.check()
    again = moved.copy(store_url)
    assert again["is_done"]
    assert again["already_there"]  # compared, not sent again
    moved.check()
    assert moved.copy(store_url)["objects"] == 0  # there is nothing to do


def test_damage_ends_a_copy_before_the_switch_until_it_is_marked(
    moved: Moved, store_url: str
) -> None:
    with opened_registry(moved.folder) as reg:
        hub = moved.hub(reg, caller(reg, "ann"))
        pack_id = hub.pack_of("ann/tune")
        hub.flip_a_block("ann/tune")
        damaged = contents(reg, pack_key(pack_id))
    refused = run_command(
        moved.data_dir, "store", "copy", "--to", store_url, "--json",
        environment=moved.environment,
    )  # fmt: skip
    assert refused.returncode == 1
    result = json.loads(refused.stdout)
    assert list(result["damaged"]) == [pack_key(pack_id)]
    assert not result["is_switched"]
    run_command(moved.data_dir, "fsck", "--repair", "--read-data", environment=moved.environment)
    assert moved.copy(store_url)["is_done"]
    with opened_registry(moved.folder) as reg:
        # What can still be read of the pack stays readable.
        assert contents(reg, pack_key(pack_id)) == damaged
        assert moved.hub(reg, caller(reg, "ann")).read("ann/base") == BASE


def test_a_place_of_another_hub_and_one_with_objects_are_refused(
    moved: Moved, service: S3Service, store_url: str, tmp_path: Path
) -> None:
    with opened_registry(tmp_path / "other", store_url=store_url) as other:
        push(other, caller(other, "bob"), "bob/m", {"a": b"1"})
    strange = service.make_bucket(f"test-{secrets.token_hex(8)}")
    service.client().put_object(Bucket=strange.split("/")[2], Key="hub/holiday", Body=b"1")
    for url, said in ((store_url, "another hub"), (strange, "not this hub's"), ("s3://b", "bucket"),
                      ("ftp://x", "s3://BUCKET/PREFIX")):  # fmt: skip
        refused = run_command(
            moved.data_dir, "store", "copy", "--to", url, environment=moved.environment
        )
        assert refused.returncode in (1, 2)
        assert said in refused.stderr
        assert "a copy" not in moved.run("store", "show")
    moved.check()


def test_what_gc_deletes_during_a_copy_is_gone_from_both_places(
    moved: Moved, store_url: str
) -> None:
    killed = run_command(
        moved.data_dir, "store", "copy", "--to", store_url,
        environment=moved.environment, failpoint="move.switch.before_commit",
    )  # fmt: skip
    assert killed.returncode == -9
    with opened_registry(moved.folder) as reg:
        before = {info.key for info in reg.store.list("")}
    for _ in range(2):
        output_of(
            moved.data_dir, "gc", "--apply", "--grace", "0", "--lease", "0",
            environment={**moved.environment, "DELTAHUB_UPLOAD_TTL_S": "0"},
        )  # fmt: skip
    moved.copy(store_url)
    moved.check()
    with opened_registry(moved.folder) as reg:
        after = {info.key for info in reg.store.list("")}
    assert after <= before
