"""An upgrade by every door: HTTP, SDK, command and pages show and decide the same."""

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from deltahub.client import Conflict, Forbidden, Hub, NotFound
from deltahub.client.cli.commands import group
from deltahub.registry.access import tokens
from deltahub.registry.upgrades.running import advance
from support.service.hub import RunningHub, running_hub
from support.upgrades.planned import Bases, jobs_of, publish, push_adapter, written
from support.web.page_reader import Browser


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningHub, Bases, str]]:
    """A hub without a worker, ann's two bases, and her token."""
    with running_hub(tmp_path_factory.mktemp("upgrades") / "data") as hub:
        bases = Bases.pushed(hub.registry)
        for name in ("ann/one", "ann/two", "ann/three"):
            push_adapter(hub.registry, bases.ann, name, "ann/v1")
        written(hub.registry, bases.ann, bases.old, bases.new)
        yield hub, bases, tokens.create_token(hub.registry, "ann", "write")


def test_all_doors_show_decide_and_put_back_the_same(
    place: tuple[RunningHub, Bases, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub, bases, token = place
    monkeypatch.setenv("DELTAHUB_URL", hub.url)
    monkeypatch.setenv("DELTAHUB_TOKEN", token)
    runner, pages = CliRunner(), Browser(hub, token)

    def command(*given: str, status: int = 0) -> str:
        done = runner.invoke(group, ["base", *given])
        assert done.exit_code == status, done.output
        return done.output

    with Hub(hub.url, token) as ann:
        (listed,) = ann.upgrades(base="ann/v1", state="proposed")
        assert (listed["old"], listed["new"], listed["counts"]) == (
            "ann/v1", "ann/v2", {"proposed": 3},
        )  # fmt: skip
        upgrade = listed["id"]
        at = f"/-/upgrades/{upgrade}"
        assert {each["adapter"] for each in ann.upgrade(upgrade)["adapters"]} == {
            "ann/one", "ann/two", "ann/three",
        }  # fmt: skip
        assert "ann/two" in pages.get(at).text
        assert at in pages.get("/ann/v1").links
        assert at in pages.get("/-/upgrades").links

        assert command("approve", str(upgrade), "ann/one") == "ann/one moves\n"
        assert pages.post(f"{at}/reject", {"adapter": "ann/two"}, at=at).status == 303
        assert ann.approve_upgrade(upgrade)["adapters"] == ["ann/three"]
        assert advance(hub.registry) == 2
        one, _ = jobs_of(hub.registry, "transfer_adapter")
        publish(hub.registry, bases.ann, one)
        assert advance(hub.registry) == 1
        shown = command("show", str(upgrade))
        assert "90.0% (80%-95%)" in shown
        assert "ann/one-v2" in shown
        table = pages.get(at)
        assert "/ann/one-v2" in table.links
        assert "choice" in table.text
        with pytest.raises(Conflict, match="put the upgrade back"):
            ann.reject_upgrade(upgrade, ["ann/one"])

        done = json.loads(command("put-back", str(upgrade), "--json"))
        assert (done["deleted"], done["cancelled"]) == (["ann/one-v2"], ["ann/three"])
        assert command("put-back", str(upgrade)) == "nothing was left to put back\n"
        assert [each["state"] for each in ann.upgrades()] == ["put_back"]
        assert "put back" in pages.get(at).text

        assert command("policy", "ann/v1") == "ann/v1: ask (the default)\n"
        ann.set_upgrade_policy("ann", "auto")
        assert command("policy", "ann/v1") == "ann/v1: auto (that of the namespace)\n"
        command("policy", "ann/v1", "off")
        assert (ann.upgrade_policy("ann/v1").policy, ann.upgrade_policy("ann").policy) == (
            "off", "auto",
        )  # fmt: skip


def test_strangers_and_wrong_requests_are_refused(place: tuple[RunningHub, Bases, str]) -> None:
    hub, _, token = place
    bob = tokens.create_token(hub.registry, "bob", "write")
    path = "/v1/upgrades/1"
    assert hub.call("POST", f"{path}/approve", body={}).code == "unauthorized"
    assert hub.call("POST", f"{path}/approve", body={}, token=bob).code == "forbidden"
    assert hub.call("GET", "/v1/upgrades/99").code == "upgrade_not_found"
    for number in ("0", "x", str(1 << 70)):
        assert hub.call("GET", f"/v1/upgrades/{number}").status in (404, 422)
    few = {"adapters": ["ann/one"], "prompts": "1\n2"}
    answer = hub.call("POST", f"{path}/approve", body=few, token=token)
    assert (answer.status, "give 5 to 64 inputs" in answer.message) == (422, True)
    assert hub.call("GET", "/v1/upgrades?state=odd").status == 422
    with Hub(hub.url, bob) as client:
        with pytest.raises(NotFound):
            client.upgrade(99)
        with pytest.raises(Forbidden):
            client.put_back_upgrade(1)
        with pytest.raises(Forbidden):
            client.set_upgrade_policy("ann/v1", "off")


def test_a_stranger_gets_no_button(place: tuple[RunningHub, Bases, str]) -> None:
    hub, _, _ = place
    guest = Browser(hub).get("/-/upgrades/1")
    assert guest.status == 200
    assert not [each for each in guest.all("form") if "upgrades" in str(each.attributes)]
