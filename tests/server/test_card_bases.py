"""The base that a commit through /v1 declares by its files."""

from hashlib import sha256

import pytest

from support.service.hub import RunningHub

CARD = b"---\nbase_model: %s\n---\n"
ADAPTER = b'{"base_model_name_or_path": "%s"}'


@pytest.mark.parametrize(
    ("files", "base", "declared"),
    [
        ({"README.md": CARD % b"org/base"}, None, "org/base"),
        ({"README.md": CARD % b"[org/b2, x/y]"}, None, "org/b2"),
        ({"README.md": CARD % b"org/base"}, "org/said", "org/said"),
        ({"README.md": CARD % b"org/base"}, "none", None),
        ({"README.md": b"# silent"}, None, "org/before"),
        ({"README.md": b"---\n- [\n---\n"}, None, "org/before"),
        ({"deep/README.md": CARD % b"org/base"}, None, "org/before"),
        ({"README.md": CARD % b"org/base" + b" " * (1 << 20)}, None, "org/before"),
        ({"adapter_config.json": ADAPTER % b"org/base"}, None, "org/base"),
        ({"adapter_config.json": ADAPTER % b"./folder"}, None, "org/before"),
        (
            {"adapter_config.json": ADAPTER % b"org/a", "README.md": CARD % b"org/base"},
            None,
            "org/base",
        ),
    ],
)
def test_a_commit_declares_the_base_that_its_card_names(
    hub: RunningHub,
    request: pytest.FixtureRequest,
    files: dict[str, bytes],
    base: str | None,
    declared: str | None,
) -> None:
    name = f"admin/card-{request.node.callspec.indices['files']}"
    hub.create(name)
    hub.commit(name, {"a.txt": b"first"}, base="org/before")
    hub.commit(name, files, base=base)
    shown = hub.call("GET", f"/v1/repositories/{name}/revision").json()["base"]["declared"]
    assert shown == declared
    # A card that the hub has already, and that is not sent again, declares the base too.
    hub.create(f"{name}-copy")
    operations = [
        {"op": "add", "path": path, "sha256": sha256(data).hexdigest(), "size": len(data)}
        for path, data in files.items()
    ]
    path = f"/v1/repositories/{name}-copy"
    body = {"operations": operations, "base": base}
    assert hub.call("POST", f"{path}/commits", token=hub.admin_token, body=body).status == 201
    shown = hub.call("GET", f"{path}/revision").json()["base"]["declared"]
    assert shown == (None if declared == "org/before" else declared)


def test_an_adapter_does_not_contradict_the_card_that_is_there(hub: RunningHub) -> None:
    hub.create("admin/carded")
    hub.commit("admin/carded", {"README.md": CARD % b"org/base"})
    hub.commit("admin/carded", {"adapter_config.json": ADAPTER % b"org/other"})
    shown = hub.call("GET", "/v1/repositories/admin/carded/revision").json()
    assert shown["base"]["declared"] == "org/base"


def test_a_card_that_one_may_not_read_names_nothing(hub: RunningHub) -> None:
    owner, other = hub.user("card-owner"), hub.user("card-thief")
    card = CARD % b"org/secret"
    hub.create("card-owner/m", private=True, token=owner)
    hub.commit("card-owner/m", {"README.md": card}, token=owner)
    hub.create("card-thief/m", token=other)
    add = {"op": "add", "path": "README.md", "sha256": sha256(card).hexdigest()}
    for size in (len(card), 1):
        body = {"operations": [add | {"size": size}]}
        answer = hub.call("POST", "/v1/repositories/card-thief/m/commits", token=other, body=body)
        assert (answer.status, answer.code) == (404, "upload_not_found")
    head = hub.call("GET", "/v1/repositories/card-thief/m", token=other).json()["head"]
    assert head is None
