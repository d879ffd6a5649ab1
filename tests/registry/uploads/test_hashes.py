"""The SHA-256 and git blob id of uploaded bytes."""

import hashlib

import pytest

from deltahub.registry.names import LFS_BYTES
from deltahub.registry.storage.checksums import Hashes


@pytest.mark.parametrize("size", [LFS_BYTES - 1, LFS_BYTES])
def test_what_is_large_for_git_has_no_name_of_a_blob(size: int) -> None:
    hashes, data = Hashes(size), bytes(size)
    hashes.update(data[:1000])
    early = hashes.copy()
    for each in (hashes, early):
        each.update(data[1000:])
        assert each.sha256 == hashlib.sha256(data).hexdigest()
        blob = hashlib.sha1(b"blob %d\0" % size + data).hexdigest()
        assert each.git_blob_id == (blob if size < LFS_BYTES else None)
