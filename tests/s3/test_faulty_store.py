"""The hub of tests/registry/stores/test_faults.py on a bucket: faults in front of a real store.

DELTAHUB_FAULT_EXAMPLES and DELTAHUB_FAULT_STEPS look longer; --hypothesis-seed=N draws the same.
"""

import secrets
from typing import ClassVar

import pytest
from hypothesis.stateful import run_state_machine_as_test

from support.service.seaweedfs import S3Service
from support.stores.fault_machine import FaultMachine, profile


class MachineInABucket(FaultMachine):
    bucket: ClassVar[str]

    def store_settings(self) -> dict[str, str]:
        return {"store_url": f"s3://{self.bucket}/{secrets.token_hex(8)}"}


@pytest.fixture
def bucket(service: S3Service, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket for all hubs of one test; the environment leads them to it."""
    for name, value in service.environment.items():
        monkeypatch.setenv(name, value)
    name = f"faults-{secrets.token_hex(8)}"
    service.make_bucket(name)
    return name


def test_faults_in_front_of_a_bucket(bucket: str) -> None:
    MachineInABucket.bucket = bucket
    run_state_machine_as_test(MachineInABucket, settings=profile(4))
