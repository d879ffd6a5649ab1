"""Content ids: BLAKE3-256, 32 raw bytes."""

from collections.abc import Iterable
from typing import Final

from blake3 import blake3

from deltahub.codecs.protocol import Buffer

ID_BYTES: Final = 32

# In a base plan: zeros instead of a tensor. No known bytes have this id.
ZERO_ID: Final = bytes(ID_BYTES)


def tensor_id(data: Buffer) -> bytes:
    """The id of a tensor, chunk or recipe with these bytes. dtype and shape do not count."""
    return blake3(data).digest()


def tensor_id_of_chunks(chunks: Iterable[Buffer]) -> bytes:
    """The id of the chunks' bytes, one chunk after another."""
    digest = blake3()
    for chunk in chunks:
        digest.update(chunk)
    return digest.digest()
