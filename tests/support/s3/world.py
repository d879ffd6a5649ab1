"""What the tests of the S3 door read: the files of ann/tiny at main, and whose keys they have."""

from dataclasses import dataclass

from support.s3.door import Door
from support.service.hub import RunningHub

ODD = ("d/a b+c%2F.txt", "d/é/ü.txt", "d/(1) [x]'!~&=@,;$.txt", "d/日本.txt", "d/plain.bin")
FILES = {
    "config.json": b'{"a": 1}', "empty.txt": b"", "model.safetensors": bytes(range(256)) * 40,
    **{path: path.encode() for path in ODD},
}  # fmt: skip


@dataclass(frozen=True)
class World:
    """A hub; its door with ann's keys; ann's token; the commit of ann/tiny with the tag v1."""

    hub: RunningHub
    ann: Door
    token: str
    first: str
