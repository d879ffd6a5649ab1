"""Whoever asks for a file whose bytes are damaged learns which file that is, and what helps."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from deltahub.registry import Registry
from deltahub.registry.storage.keys import pack_key
from deltahub.server.app import create_app
from support.registry.ingested import push_ingested
from support.registry.opened import caller, opened_registry
from support.registry.small_hub import BASE, PATH, SmallHub, fill

FILE = f"'{PATH}' of ann/tune"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[SmallHub]:
    with opened_registry(tmp_path) as reg:
        ann = caller(reg, "ann")
        yield SmallHub(reg, ann, fill(reg, ann))


def client(reg: Registry) -> TestClient:
    return TestClient(create_app(reg), base_url="http://localhost")


def text_of(answer: Any) -> str:
    assert answer.status_code == 500
    error = answer.json()["error"]
    return str(error if isinstance(error, str) else error["message"])


def check(text: str, file: str, pack: str) -> None:
    assert text.startswith(f"{file}: ")
    assert "push the file again to bring it back" in text
    assert "fsck" not in text
    assert pack not in text


@pytest.mark.parametrize("how", ["lost", "damaged"])
def test_a_file_whose_pack_is_damaged_is_named_at_both_doors(
    hub: SmallHub, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    pack = hub.pack_of("ann/tune")
    if how == "lost":
        hub.lose("ann/tune")
    else:
        hub.flip_a_block("ann/tune")
    http = client(hub.reg)
    check(text_of(http.get(f"/v1/repositories/ann/tune/files/{PATH}")), FILE, pack)
    check(text_of(http.get(f"/ann/tune/resolve/main/{PATH}")), FILE, pack)
    assert pack in caplog.text, "the operator's log says which object it is"


def test_frames_that_are_gone_name_the_files_that_need_them(hub: SmallHub) -> None:
    http = client(hub.reg)
    plan = http.get(f"/v1/repositories/ann/tune/recipes/{PATH}").json()
    tensors = [tensor["id"] for tensor in plan["tensors"]]
    pack = hub.pack_of("ann/tune")
    hub.lose("ann/tune")
    answer = http.post("/v1/repositories/ann/tune/frames", json={"tensors": tensors})
    check(text_of(answer), FILE, pack)


def test_the_recipe_of_a_lost_file_names_the_file(hub: SmallHub) -> None:
    pack = hub.pack_of("ann/tune")
    hub.lose("ann/tune")
    http = client(hub.reg)
    for kind in ("recipes", "recipe-bytes"):
        answer = http.get(f"/v1/repositories/ann/tune/{kind}/{PATH}")
        if answer.status_code != 200:  # the recipe may lie in another pack
            check(text_of(answer), FILE, pack)


def test_a_private_file_with_the_same_bytes_is_not_named(hub: SmallHub) -> None:
    pack = hub.pack_of("ann/base")
    push_ingested(hub.reg, hub.ann, "ann/secret", {"secret.safetensors": BASE}, private=True)
    hub.reg.store.delete(pack_key(pack))
    text = text_of(client(hub.reg).get(f"/v1/repositories/ann/tune/files/{PATH}"))
    check(text, FILE, pack)
    assert "secret" not in text
    hidden = client(hub.reg).get("/v1/repositories/ann/secret/files/secret.safetensors")
    assert hidden.status_code == 404
    assert "bring it back" not in hidden.text


def test_what_the_answer_advises_helps(hub: SmallHub) -> None:
    hub.flip_a_block("ann/base")
    text_of(client(hub.reg).get(f"/v1/repositories/ann/base/files/{PATH}"))
    push_ingested(hub.reg, hub.ann, "ann/base", {PATH: BASE})
    assert hub.read("ann/base") == BASE
