"""What a model card that clients upload says of the base, in whatever order base and model come."""

import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from clients.conftest import World
from clients.machine import Machine
from support.models.model_folders import write_model
from support.models.tiny_models import Tensors, base, finetune
from support.service.client_process import deltahub

PATH = "model.safetensors"
UPLOAD = """
from huggingface_hub import HfApi
HfApi().create_repo(name, exist_ok=True)
HfApi().upload_folder(repo_id=name, folder_path=folder)
"""
CREATE = """
from huggingface_hub import HfApi
HfApi().create_repo(name)
"""
UPLOAD_FILE = """
from huggingface_hub import HfApi
HfApi().create_repo(name, exist_ok=True)
HfApi().upload_file(repo_id=name, path_or_fileobj=file, path_in_repo=path)
"""
DOWNLOAD = """
from huggingface_hub import hf_hub_download
result = hf_hub_download(name, "model.safetensors")
"""
WAIT_S = 60


class Case:
    """alice's fine-tune `name`, and its base `name`-base, which come by the newest client."""

    def __init__(self, world: World, machine: Machine, name: str, seed: int) -> None:
        self.world, self.machine, self.name = world, machine, name
        self.base = f"{name}-base"
        self._folders = machine.home.parent
        self._seed = seed

    def upload(self, name: str, tensors: Tensors, card: str = "# A model\n") -> Path:
        """Uploads a folder as trainers do; returns it."""
        folder = write_model(self._folders / name.rpartition("/")[2], tensors)
        (folder / "README.md").write_text(card)
        self.machine.run(UPLOAD, name=name, folder=folder)
        return folder

    def upload_tune(self, named: str | None = None) -> None:
        self._tune = self.upload(self.name, finetune(1e-4, self._seed), card_of(named))

    def upload_base(self) -> None:
        self.upload(self.base, base(self._seed))

    def upload_file(self, name: str, path: str, text: str) -> None:
        file = self._folders / "one-file"
        file.write_text(text)
        self.machine.run(UPLOAD_FILE, name=name, file=file, path=path)

    def info(self, name: str | None = None) -> dict[str, Any]:
        """As soon as the model is ingested and nothing is still to change how it is stored."""
        path = f"/v1/repositories/{name or self.name}/info"
        deadline = time.monotonic() + WAIT_S
        while True:
            found: dict[str, Any] = self.world.hub.call("GET", path, token=self.world.alice).json()
            is_over = all(file["state"] == "ingested" for file in found["files"])
            if is_over and found["base"]["pending_job_id"] is None:
                return found
            assert time.monotonic() < deadline, found
            time.sleep(0.1)

    def assert_made_from_base(self) -> dict[str, Any]:
        """The fine-tune is a difference from its base, and comes back as it was."""
        deadline = time.monotonic() + WAIT_S
        # Its base is ingested, and it is planned anew, some time after the upload is over.
        while not (found := self.info())["base"]["measured"]:
            assert time.monotonic() < deadline, found["base"]
            time.sleep(0.1)
        assert [each["repository"] for each in found["base"]["measured"]] == [self.base]
        depths = depths_of(found)
        assert {depths[each] for each in depths if each.endswith("up.weight")} == {1}
        assert max(depths.values()) == 1
        assert set(depths_of(self.info(self.base)).values()) == {0}
        assert found["totals"]["own"] < 0.8 * (self._tune / PATH).stat().st_size
        self.assert_comes_back()
        return found

    def assert_comes_back(self) -> None:
        weights = (self._tune / PATH).read_bytes()
        came = Path(self.machine.another().run(DOWNLOAD, name=self.name)).read_bytes()
        assert sha256(came).digest() == sha256(weights).digest()

    def assert_named_and_used(self) -> None:
        found = self.assert_made_from_base()["base"]
        assert (found["declared"], found["declared_status"]) == (self.base, "resolved")
        assert found["declared_share"] > 0.95


def card_of(base: str | None) -> str:
    return "# A model\n" if base is None else f"---\nbase_model: {base}\n---\n# A model\n"


def depths_of(info: dict[str, Any]) -> dict[str, int]:
    """Of the tensors of the weights: those that are a difference from another one have 1."""
    return {
        tensor["name"]: tensor["base_depth"]
        for file in info["files"]
        if file["path"] == PATH
        for tensor in file["tensors"]
    }


@pytest.fixture
def case(world: World, newest: Machine, name: str) -> Case:
    # Others than those of all tests beside these: the hub would find relatives among them.
    return Case(world, newest, name, seed=1000 + int(name.rpartition("-")[2]))


def test_a_card_that_comes_with_the_weights_names_their_base(case: Case) -> None:
    case.upload_base()
    case.info(case.base)
    case.upload_tune(case.base)
    case.assert_named_and_used()


def test_a_card_that_comes_before_the_base_makes_the_weights_a_difference(case: Case) -> None:
    case.upload_tune()
    case.info()
    case.upload_file(case.name, "README.md", card_of(case.base))
    case.upload_base()
    case.assert_named_and_used()


def test_a_card_that_comes_after_the_base_leaves_the_base_a_difference(case: Case) -> None:
    case.upload_tune()
    case.info()
    case.upload_base()
    depths = depths_of(case.info(case.base))
    assert max(depths.values()) == 1
    # Nobody has said which came from which: the first stays whole, and does so from now on.
    assert set(depths_of(case.info()).values()) == {0}
    case.upload_file(case.name, "README.md", card_of(case.base))
    found = case.info()
    assert set(depths_of(found).values()) == {0}
    assert (found["base"]["declared"], found["base"]["declared_status"]) == (case.base, "unused")
    assert depths_of(case.info(case.base)) == depths
    case.assert_comes_back()


def test_a_card_names_a_base_that_is_made_and_uploaded_later(case: Case) -> None:
    case.upload_tune(case.base)
    assert case.info()["base"]["declared_status"] == "absent"
    case.upload_base()
    case.assert_named_and_used()


@pytest.mark.parametrize("first", ["nothing", "config.json"])
def test_a_card_names_a_base_that_has_no_weights_so_far(case: Case, first: str) -> None:
    if first == "nothing":
        case.machine.run(CREATE, name=case.base)
    else:
        case.upload_file(case.base, first, '{"model_type": "tiny"}')
    case.upload_tune(case.base)
    assert case.info()["base"]["declared_status"] == "no_safetensors"
    case.upload_base()
    case.assert_named_and_used()


def test_a_card_that_names_a_wrong_base_does_not_hide_the_right_one(
    case: Case, world: World
) -> None:
    wrong = f"{case.name}-wrong"
    case.upload(wrong, base(seed=999))
    case.upload_base()
    case.info(case.base)
    case.upload_tune(wrong)
    found = case.assert_made_from_base()["base"]
    assert (found["declared"], found["declared_status"]) == (wrong, "unused")
    environment = {"DELTAHUB_URL": world.hub.url, "DELTAHUB_TOKEN": world.alice}
    shown = deltahub("info", case.name, "--brief", environment=environment)
    assert shown.status == 0, shown.err
    line = f"base declared: {wrong} (not used: nothing here is coded against its tensors)"
    assert line in shown.out
    assert f"base measured: {case.base}@" in shown.out
