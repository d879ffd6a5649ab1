"""Sends the parts of an unfinished upload while the next ones come in."""

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Executor, Future, wait
from typing import Final

from deltahub.registry import cancellation
from deltahub.registry.failpoints import reached
from deltahub.registry.spools.bucket.part_file import PartFile
from deltahub.registry.storage.base import PartsLost, PartStore, SentPart

# Parts of one upload that are sent at once, beside the one that fills.
MOST_RUNNING: Final = 2
_LOOK_S: Final = 0.5


class PartSender:
    """The parts of one object. `sent` are those that the store has confirmed, in order."""

    def __init__(self, parts: PartStore, pool: Executor, key: str) -> None:
        self.upload_id: str | None = None
        self.sent: list[SentPart] = []
        self._parts = parts
        self._pool = pool
        self._key = key
        self._running: deque[tuple[Future[SentPart], PartFile]] = deque()

    def go_on(self, upload_id: str | None, sent: Iterable[SentPart]) -> None:
        """Go on after these parts, without those that are being sent."""
        self.stop()
        self.upload_id, self.sent = upload_id, list(sent)

    def send(self, file: PartFile) -> None:
        """Send a part, and close its file. Waits while many are being sent; raises their errors."""
        try:
            if self.upload_id is None:
                self.upload_id = self._parts.begin(self._key)
            number = len(self.sent) + len(self._running) + 1
            sending = self._pool.submit(self._send, self.upload_id, number, file)
        except BaseException:
            file.close()
            raise
        self._running.append((sending, file))
        self.wait(MOST_RUNNING)

    def wait(self, n_left: int = 0) -> None:
        """Return when no more parts than these are being sent."""
        while self._running and (len(self._running) > n_left or self._running[0][0].done()):
            first, file = self._running[0]
            while not first.done():
                wait([first], _LOOK_S)
                cancellation.check()
            self._running.popleft()
            file.close()
            self.sent.append(first.result())

    def stop(self) -> None:
        """Return when nothing is being sent any more, whether it came or not."""
        for sending, _ in self._running:
            sending.cancel()
        while self._running:
            sending, file = self._running.popleft()
            wait([sending])
            file.close()

    def finish(self) -> bool:
        """Make the object of all parts; as in PartStore."""
        assert self.upload_id is not None, "parts were sent"
        is_proved = self._parts.finish(self._key, self.upload_id, self.sent)
        self.upload_id = None  # it has ended
        return is_proved

    def abort(self) -> None:
        """End the upload in parts: nobody makes an object of it any more. StoreUnavailable."""
        self.stop()
        if self.upload_id is not None:
            abort(self._parts, self._key, self.upload_id)
        self.upload_id, self.sent = None, []

    def _send(self, upload_id: str, number: int, file: PartFile) -> SentPart:
        sent = self._parts.send(self._key, upload_id, number, file.fd, file.size)
        reached("bucket_spool.part.after_send")
        return sent


def abort(parts: PartStore, key: str, upload_id: str) -> None:
    """End an upload in parts. It is no error if it has ended, or if the hub has left its store."""
    try:
        parts.abort(key, upload_id)
    except PartsLost:
        pass
