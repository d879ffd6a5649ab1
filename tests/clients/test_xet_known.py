"""What a client need not send, because the hub tells it which chunks it has."""

import random
from hashlib import sha256
from pathlib import Path

import pytest

from clients.conftest import World
from clients.environments import NEWEST
from clients.machine import Machine

MIB = 1 << 20
SEND = """
from huggingface_hub import HfApi
HfApi().create_repo(name, exist_ok=True, private=True)
result = HfApi().upload_file(repo_id=name, path_or_fileobj=file, path_in_repo="model.bin").oid
"""


def sent(world: World, machine: Machine, name: str, file: Path) -> int:
    """Bytes that the hub receives of an upload."""

    def received() -> int:
        answer = world.hub.call("GET", "/v1/metrics", token=world.hub.admin_token)
        return int(answer.json()["received_bytes"])

    before = received()
    machine.run(SEND, name=name, file=file)
    return received() - before


@pytest.mark.parametrize("machine", ["hub-1.26", NEWEST], indirect=True)
def test_a_computer_that_sent_nothing_yet_sends_only_what_changed(
    machine: Machine, world: World, name: str, tmp_path: Path
) -> None:
    data = bytearray(random.Random(name).randbytes(24 * MIB))
    file = tmp_path / "model.bin"
    file.write_bytes(data)
    assert sent(world, machine, name, file) > len(data)
    data[12 * MIB : 13 * MIB] = random.Random(name + "!").randbytes(MIB)
    file.write_bytes(data)
    # Noise does not compress: this is the MiB that is new and what lies around it in chunks.
    assert MIB < sent(world, machine.another(), name, file) < 3 * MIB
    assert world.hashes(name)["model.bin"] == sha256(data).hexdigest()
    # What another may not read, he sends whole.
    of_bob = machine.another(token=world.bob)
    assert sent(world, of_bob, name.replace("alice", "bob"), file) > len(data)
