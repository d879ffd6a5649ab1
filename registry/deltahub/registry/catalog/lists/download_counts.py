"""Counts downloads of models as huggingface.co does: by requests of files that say what they are.

A model has many files, and a client asks for each several times. So only requests of the files
that every download begins with are counted, and those of one client within COUNT_ONCE_S once.
"""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from datetime import datetime
from threading import Lock
from typing import Final, TypeAlias

from sqlalchemy import update

from deltahub.registry.db.models import Repository
from deltahub.registry.registry import Registry

COUNT_ONCE_S: Final = 300.0
# Files at the root of a repository, as https://huggingface.co/docs/hub/models-download-stats lists
# them for most libraries, and endings of files that are whole models.
_FILES: Final = frozenset(
    {
        "adapter_config.json", "config.json", "config.yaml", "hyperparams.yaml", "meta.yaml",
        "model_index.json", "params.json",
    }
)  # fmt: skip
_ENDINGS: Final = (".gguf", ".nemo")
# Downloads whose clients are remembered; the oldest are forgotten first. About 20 MiB.
_MAX_REMEMBERED: Final = 100_000
# Row ids are given again, so a repository is known by its creation, too.
_Key: TypeAlias = tuple[int, datetime]


class DownloadCounts:
    """Downloads that this process has served and not written yet. Safe to share between threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._waiting: Counter[_Key] = Counter()
        # (repository, client) -> when its last download was counted, the oldest first.
        self._counted: OrderedDict[tuple[_Key, Hashable], float] = OrderedDict()

    def note(self, repository: Repository, path: str, client: Hashable) -> None:
        """Count a request of a file, if it is a download. client: a user or an address."""
        if path not in _FILES and not path.endswith(_ENDINGS):
            return
        key = (repository.id, repository.created_at)
        now = self._clock()
        with self._lock:
            last = self._counted.get((key, client))
            if last is not None and now - last < COUNT_ONCE_S:
                return
            self._counted[key, client] = now
            self._counted.move_to_end((key, client))
            if len(self._counted) > _MAX_REMEMBERED:
                self._counted.popitem(last=False)
            self._waiting[key] += 1

    def write(self, reg: Registry) -> None:
        """Add what was counted to the rows, in one transaction. It stays counted if that fails."""
        with self._lock:
            waiting, self._waiting = self._waiting, Counter()
        if not waiting:
            return
        try:
            with reg.db.write_beside() as session:
                for (repository_id, created_at), n in sorted(waiting.items()):
                    session.execute(
                        update(Repository)
                        .where(Repository.id == repository_id, Repository.created_at == created_at)
                        .values(downloads=Repository.downloads + n)
                        .execution_options(synchronize_session=False)
                    )
        except BaseException:
            with self._lock:
                self._waiting.update(waiting)
            raise
