"""The hub's requests that are about steps."""

import hashlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Final

from deltahub.client.api.endpoints import Api
from deltahub.client.api.parsing import field_of, items_of
from deltahub.client.api.transport import LONG_TIMEOUT_S
from deltahub.client.api.wire import Reply, odd_answer
from deltahub.client.errors import RevisionNotFound
from deltahub.client.names import repository_path
from deltahub.client.steps.records import Step

_PAGE: Final = 1000


def list_steps(api: Api, run: str, limit: int) -> list[Step]:
    """The newest steps of a run, the newest first."""
    path = f"{repository_path(run)}/steps"
    found: list[Step] = []
    cursor: str | None = None
    while len(found) < limit:
        query = {"limit": min(limit - len(found), _PAGE), "cursor": cursor}
        answer = api.transport.call("GET", path, query=query)
        page = answer.read(partial(items_of, Step))
        found += page
        before = cursor
        cursor = answer.read(lambda value: field_of(value, "next_cursor", str | None))
        if not cursor or cursor == before or not page:
            break
    return found[:limit]


def newest_step(api: Api, run: str) -> int:
    """The number of the newest step. RevisionNotFound if the repository has none."""
    found = list_steps(api, run, 1)
    if not found:
        raise RevisionNotFound(f"{run} has no steps yet")
    return found[0].number


def upload_small(api: Api, data: bytes) -> str:
    """Uploads the bytes of a small file; their SHA-256."""
    body = len(data).to_bytes(4, "little") + data
    answer = api.transport.call("POST", "/v1/uploads", body=body, timeout_s=LONG_TIMEOUT_S)
    sha256 = hashlib.sha256(data).hexdigest()
    if answer.read(lambda value: field_of(value, "sha256", tuple[str, ...])) != (sha256,):
        raise odd_answer(answer.request, "it names another file than was sent")
    return sha256


def open_differences(
    api: Api,
    run: str,
    commit: str,
    base: str | None,
    tensors: Sequence[tuple[bytes, bytes | None]],
    first_byte: int,
) -> AbstractContextManager[Reply]:
    """A response with frames of the first of these tensors. Not retried.

    tensors: (content id, the one of the commit `base` that is here) of each.
    """
    pairs = ",".join(
        f'["{tensor.hex()}",{"null" if its_base is None else chr(34) + its_base.hex() + chr(34)}]'
        for tensor, its_base in tensors
    )
    quoted = "null" if base is None else f'"{base}"'
    body = f'{{"base":{quoted},"first_byte":{first_byte},"tensors":[{pairs}]}}'
    return api.transport.open(
        "POST",
        f"{repository_path(run)}/differences",
        query={"revision": commit},
        body=body.encode(),
        headers={"Content-Type": "application/json"},
        timeout_s=LONG_TIMEOUT_S,
    )
