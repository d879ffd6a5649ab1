"""Decodes models of a data folder, and prints the CPU seconds that the frames alone took.

What a server of rebuilt files that keeps nothing cannot do without: every frame that a model needs,
those of its base too, decoded once for it, and their checksums.
"""

import resource
import sys
from pathlib import Path

from deltahub.registry.access.caller import Caller
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.catalog.entries import list_entries
from deltahub.registry.catalog.refs import resolve_revision
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.registry import Registry
from deltahub.registry.settings import Settings


def main() -> None:
    data_dir, *names = sys.argv[1:]
    reader = Caller(0, "reader", is_admin=True, scope="admin")
    with Registry.open(Settings(data_dir=Path(data_dir))) as registry:
        file_reader = FileReader(registry)
        files = []
        with registry.db.read() as session:
            for name in names:
                repository = load_repository(session, reader, name)
                revision = resolve_revision(session, repository, "main")
                files += [entry.file for entry in list_entries(session, revision)]
        before = _spent()
        for file in files:
            for _ in file_reader.stream_pieces(file, 0, file.size):
                continue
        print(_spent() - before)


def _spent() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
