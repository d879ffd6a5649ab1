"""A hub with a worker, and a tiny Llama that ann has pushed."""

from collections.abc import Iterator

import pytest

from deltahub.client import Hub
from support.adapters.place import Place
from support.adapters.tuning import write_base
from support.service.hub import running_hub


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("adapters")
    with pytest.MonkeyPatch.context() as patch, running_hub(root / "data", with_worker=True) as hub:
        patch.setenv("DELTAHUB_CACHE", str(root / "cache"))
        patch.setenv("HF_HOME", str(root / "hf"))
        token = hub.user("ann")
        base = write_base(root / "base")
        with Hub(hub.url, token) as ann:
            ann.push(base, "ann/base")
            yield Place(hub, ann, token, base)
