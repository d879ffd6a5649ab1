"""Computers with clients of S3, and keys of alice and bob."""

from pathlib import Path

import pytest

from clients.conftest import World
from clients.environments import S3, Environment
from clients.machine import Machine
from deltahub.client import Hub


def settings_of(world: World, token: str | None) -> dict[str, str]:
    """What a user sets, as `deltahub token s3` prints it; None: reads unsigned."""
    # A name, as hubs have one: for an IP address, clients write the bucket into the path anyway.
    url = world.hub.s3_url.replace("127.0.0.1", "localhost")
    found = {
        "AWS_ENDPOINT_URL": url,
        "AWS_DEFAULT_REGION": "us-east-1",
        "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0",
    }
    if token is None:
        return found
    with Hub(world.hub.url, token) as hub:
        keys = hub.s3_keys()
    assert keys.endpoint_url == world.hub.s3_url
    found["AWS_ACCESS_KEY_ID"] = keys.access_key_id
    found["AWS_SECRET_ACCESS_KEY"] = keys.secret_access_key
    return found


@pytest.fixture
def alices(environments: dict[str, Environment], world: World, tmp_path: Path) -> Machine:
    """alice's computer, with the keys of a token that only reads."""
    settings = settings_of(world, world.alice_reads)
    return Machine(environments[S3], tmp_path / "home", world.hub.url, None, settings)


@pytest.fixture
def bobs(alices: Machine, world: World) -> Machine:
    return alices.another(settings=settings_of(world, world.bob))


@pytest.fixture
def guests(alices: Machine, world: World) -> Machine:
    """A computer of somebody without keys."""
    return alices.another(settings=settings_of(world, None))
