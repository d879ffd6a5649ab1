"""A pull goes on with plain bytes if the hub refuses frames that its plan has named."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from deltahub.client import Hub
from deltahub.client.api.endpoints import Api
from deltahub.client.api.wire import Reply
from deltahub.client.errors import TensorNotFound
from support.models.model_folders import base_tensors, contents, write_model


def test_a_base_that_left_after_the_plan_costs_bytes_and_no_file(
    hub: Hub, name: str, tmp_path: Path,
    other_machine: Callable[[], Path], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    folder = write_model(tmp_path / "model", base_tensors())
    hub.push(folder, name)
    other_machine()
    refused: list[list[str]] = []

    def refuse(
        api: Api, name: str, commit: str, tensors: Iterable[str]
    ) -> AbstractContextManager[Reply]:
        refused.append(list(tensors))
        raise TensorNotFound("it is stored as a difference from a tensor that you may not read")

    monkeypatch.setattr(Api, "open_frames", refuse)
    assert contents(hub.pull(name)) == contents(folder)
    assert refused
