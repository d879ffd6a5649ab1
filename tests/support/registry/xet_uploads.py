"""Uploads by Xet to a registry, with two xorbs and a file of their chunks."""

from datetime import timedelta
from random import Random

from sqlalchemy import update

from deltahub.registry import Caller, Registry
from deltahub.registry.catalog.commit import AddFile, commit
from deltahub.registry.db.models import Xorb, utc_now
from deltahub.registry.storage.keys import landing_key
from deltahub.registry.uploads.landing import complete_upload
from deltahub.registry.xet.epochs import epoch_of
from support.registry.collecting import collect, count
from support.registry.xet import FileOf, TermOf, XorbOf, cut, repository_row, send_shard, send_xorb

ONE = XorbOf(cut(Random(1).randbytes(90_000)), scheme=2)
TWO = XorbOf(cut(b"the same again " * 9000), scheme=1)
FILE = FileOf([TermOf(ONE), TermOf(TWO, 2, 7), TermOf(ONE, 3, 4)])


def landed(reg: Registry, who: Caller, sha256: str) -> bytes:
    with reg.db.read() as session:
        upload = complete_upload(session, who, sha256)
    out = bytearray(upload.size)
    reg.store.get_into(landing_key(upload.id), 0, memoryview(out))
    return bytes(out)


def commit_file(reg: Registry, who: Caller, name: str, file: FileOf, path: str = "a.bin") -> None:
    commit(reg, who, name, "main", [AddFile(path, file.digest, len(file.data))], "by Xet")


def epoch(reg: Registry, name: str = "ann/m") -> int:
    with reg.db.read() as session:
        return epoch_of(session, reg.settings, repository_row(reg, name))


def let_xorbs_expire(reg: Registry) -> None:
    with reg.db.write() as session:
        session.execute(update(Xorb).values(expires_at=utc_now() - timedelta(seconds=1)))
    collect(reg)
    assert count(reg, Xorb) == 0


def send_all(reg: Registry, who: Caller, name: str, *files: FileOf) -> None:
    for xorb in (ONE, TWO):
        send_xorb(reg, name, xorb)
    send_shard(reg, who, name, files)
