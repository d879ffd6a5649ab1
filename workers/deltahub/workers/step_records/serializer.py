"""How values are written in the job engine's file: as JSON behind a checksum."""

import json
import zlib
from typing import Any

from dbos import Serializer

from deltahub.registry.errors import JobFailed
from deltahub.workers.failures import JobCancelled, StepFailed


class DamagedRecord(Exception):
    """A record in the job engine's file has changed since it was written."""

    code = JobFailed.code


class JsonSerializer(Serializer):
    """JSON instead of the default pickle, because unpickling a modified file would run code.

    The checksum detects a changed record. Without it a job would go on with a wrong result of a
    step.
    """

    def serialize(self, data: Any) -> str:
        record: dict[str, Any]
        if isinstance(data, BaseException):
            record = {
                "error": {
                    "code": str(getattr(data, "code", JobFailed.code)),
                    "message": str(data),
                    "is_transient": bool(getattr(data, "is_transient", False)),
                }
            }
        else:
            record = {"value": data}
        text = json.dumps(record)
        return f"{zlib.crc32(text.encode()):08x} {text}"

    def deserialize(self, serialized_data: str) -> Any:
        checksum, _, text = serialized_data.partition(" ")
        if checksum != f"{zlib.crc32(text.encode()):08x}":
            raise DamagedRecord("a record in the job engine's file does not match its checksum")
        record = json.loads(text)
        if "error" not in record:
            return record["value"]
        error = record["error"]
        if error["code"] == JobCancelled.code:
            return JobCancelled(error["message"])
        return StepFailed(error["code"], error["message"], is_transient=error["is_transient"])

    def name(self) -> str:
        return "deltahub_json"
