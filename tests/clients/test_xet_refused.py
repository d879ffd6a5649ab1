"""What clients print of refusals by the hub's Xet service, whose body they drop."""

import random
import re
from pathlib import Path

from clients.conftest import World
from clients.environments import NEWEST, Environment
from clients.machine import Machine
from support.service.hub import served_hub
from support.service.tcp_proxy import damaging_proxy

SEND = """
from huggingface_hub import HfApi
HfApi().create_repo(name)
result = HfApi().upload_file(repo_id=name, path_or_fileobj=file, path_in_repo="model.bin").oid
"""
TOKEN = re.compile(rb'("accessToken": ?"|x-xet-access-token: )([^"\r]+)', re.IGNORECASE)


def test_of_a_xorb_that_changed_on_its_way_the_status_and_the_path_are_shown(
    environments: dict[str, Environment], tmp_path: Path
) -> None:
    # Every large block that is sent: clients try again.
    def flipped(block: bytes, is_answer: bool) -> bytes:
        if is_answer or len(block) < 30_000:
            return block
        middle = len(block) // 2
        return block[:middle] + bytes([block[middle] ^ 0xFF]) + block[middle + 1 :]

    file = tmp_path / "model.bin"
    file.write_bytes(random.Random(9).randbytes(1_000_000))
    with (
        (tmp_path / "hub.log").open("wb") as log,
        served_hub(tmp_path / "data", log=log) as hub,
        damaging_proxy(hub.address, edit=flipped) as proxy,
    ):
        sender = Machine(environments[NEWEST], tmp_path / "home", proxy.url, hub.admin_token)
        refused = sender.refused(SEND, name="admin/m", file=file)
        assert hub.call("GET", "/admin/m/resolve/main/model.bin").status == 404
    assert "422" in refused.output, refused.output
    assert "/v1/xorbs/default/" in refused.output, refused.output
    said = (tmp_path / "hub.log").read_text()
    (sentence, *_) = re.findall(r"WARNING .*xorb=[0-9a-f]{64} of r\d+-\w+: code=\w+: (.+)", said)
    # Should it appear there one day, docs/xet.md is to say so.
    assert sentence not in refused.output


def test_of_a_token_that_is_not_the_hubs_the_status_and_the_path_are_shown(
    newest: Machine, world: World, name: str, tmp_path: Path
) -> None:
    def tampered(block: bytes, is_answer: bool) -> bytes:
        return TOKEN.sub(lambda m: m[1] + m[2][::-1], block) if is_answer else block

    file = tmp_path / "model.bin"
    file.write_bytes(random.Random(name).randbytes(1_000_000))
    with damaging_proxy(world.hub.address, edit=tampered) as proxy:
        refused = newest.another(endpoint=proxy.url).refused(SEND, name=name, file=file)
    assert "401" in refused.output, refused.output
    assert "/cas/e0/" in refused.output, refused.output
    assert world.hashes(name) == {}
