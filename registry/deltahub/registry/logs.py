"""The log of a server or worker on standard error: lines of text, or one JSON object a line."""

import json
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, Literal

Format = Literal["text", "json"]
_TEXT: Final = "%(asctime)s {process}[%(process)d] %(levelname)s %(name)s: %(message)s%(request)s"


class LogFormatter(logging.Formatter):
    """Formats records of one process.

    redact: cuts secrets out of text. request_id: the id of the request that the calling thread
    works for, if it works for one. A record may bring more `fields`, which JSON shows as they are.
    """

    def __init__(
        self,
        process: str,
        log_format: Format,
        redact: Callable[[str], str] = str,
        request_id: Callable[[], str | None] = lambda: None,
    ) -> None:
        super().__init__(_TEXT.format(process=process))
        self._process = process
        self._is_json = log_format == "json"
        self._redact = redact
        self._request_id = request_id

    def format(self, record: logging.LogRecord) -> str:
        request_id = self._request_id()
        if self._is_json:
            return json.dumps(self._fields(record, request_id), default=str)
        record.request = "" if request_id is None else f" request={request_id}"
        return self._redact(super().format(record))

    def _fields(self, record: logging.LogRecord, request_id: str | None) -> dict[str, Any]:
        at = datetime.fromtimestamp(record.created, UTC)
        fields: dict[str, Any] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "process": f"{self._process}[{record.process}]",
            # Before it becomes JSON, whose escapes would hide where a secret begins.
            "message": self._redact(record.getMessage()),
        }
        if request_id is not None:
            fields["request_id"] = request_id
        if record.exc_info:
            fields["exception"] = self._redact(self.formatException(record.exc_info))
        if record.stack_info:
            fields["stack"] = self._redact(self.formatStack(record.stack_info))
        more: dict[str, Any] = getattr(record, "fields", {})
        return fields | more


def log_to_stderr(formatter: logging.Formatter, *, level: int = logging.INFO) -> None:
    """Log our own events from this level on, and the warnings of all libraries."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("deltahub").setLevel(level)
    # The job engine adds a handler with lines of its own shape, unless its logger has one.
    engine = logging.getLogger("dbos")
    engine.addHandler(handler)
    engine.propagate = False
