"""Downloads a file as plain bytes, without its recipe, and verifies its SHA-256."""

import hashlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from deltahub.client.api.endpoints import Api
from deltahub.client.api.wire import Reply, body_ended_early
from deltahub.client.errors import BadResponse, VerificationFailed
from deltahub.client.local.paths import read_at, write_at
from deltahub.client.pull.journal import Journal
from deltahub.client.pull.rebuild import Target

_CHUNK = 1 << 20
_N_BUFFERS = 4
_JOURNAL_STEP_BYTES = 32 << 20


class WholeFile:
    """Downloads one file into its target, from where an earlier process stopped."""

    def __init__(
        self, api: Api, target: Target, journal: Journal, on_done: Callable[[int], None]
    ) -> None:
        self._api = api
        self._target = target
        self._journal = journal
        self._on_done = on_done
        self._digest = hashlib.sha256()
        self._position = 0
        self.received = 0
        self.reused = 0

    def run(self) -> None:
        """Fills the file. VerificationFailed when its SHA-256 is wrong twice."""
        self._resume()
        for is_last in (False, True):
            self._download()
            if self._digest.hexdigest() == self._target.entry.sha256:
                return
            if is_last:
                break
            self._on_done(-self._position)
            self._digest = hashlib.sha256()
            self._position = 0
        raise VerificationFailed(
            f"{self._target.entry.path} came twice with another SHA-256 than the hub promised"
        )

    def _resume(self) -> None:
        """Hashes the bytes that an earlier process wrote, as far as its journal goes."""
        end = min(self._journal.done.get(0, 0), self._target.entry.size)
        buffer = memoryview(bytearray(_CHUNK))
        try:
            while self._position < end:
                part = buffer[: min(_CHUNK, end - self._position)]
                read_at(self._target.fd, part, self._position)
                self._digest.update(part)
                self._position += len(part)
        except EOFError:
            self._digest = hashlib.sha256()
            self._position = 0
        self.reused = self._position
        self._on_done(self._position)

    def _download(self) -> None:
        target = self._target
        with ThreadPoolExecutor(1) as hasher:

            def attempt() -> None:
                start, end = self._position, target.entry.size
                with self._api.open_file(
                    target.repository, target.commit, target.entry, start, end
                ) as reply:
                    if reply.status != (200 if start == 0 else 206):
                        raise BadResponse(f"the hub answered {reply.status} to a range")
                    self._read(reply, hasher)
                    reply.drain()

            if self._position < target.entry.size:
                self._api.transport.with_retries(attempt, lambda: self._position)

    def _read(self, reply: Reply, hasher: ThreadPoolExecutor) -> None:
        """Reads to the end of the file. A thread hashes in parallel, up to _N_BUFFERS behind."""
        ring = [memoryview(bytearray(_CHUNK)) for _ in range(_N_BUFFERS)]
        pending: list[Future[None] | None] = [None] * _N_BUFFERS
        i = 0
        journaled = self._position
        try:
            while self._position < self._target.entry.size:
                earlier = pending[i]
                if earlier is not None:
                    earlier.result()
                wanted = min(_CHUNK, self._target.entry.size - self._position)
                part = ring[i][: reply.read_up_to(ring[i][:wanted])]
                write_at(self._target.fd, part, self._position, self._target.path)
                pending[i] = hasher.submit(self._digest.update, part)
                self._position += len(part)
                self.received += len(part)
                self._on_done(len(part))
                if self._position - journaled >= _JOURNAL_STEP_BYTES:
                    self._journal.add(0, self._position)
                    journaled = self._position
                i = (i + 1) % _N_BUFFERS
                if len(part) < wanted:
                    raise body_ended_early()
        finally:
            # The next attempt continues this digest, so it must include all received bytes.
            for task in pending:
                if task is not None:
                    task.result()
