"""A hub with something in most tables, and all that it shows, to compare two databases of it."""

from dataclasses import asdict
from typing import Any

from sqlalchemy import select, text

from deltahub.registry import Registry
from deltahub.registry.access import tokens
from deltahub.registry.access.organizations import add_member, create_organization
from deltahub.registry.access.users import create_user
from deltahub.registry.catalog.lists.search import list_repositories
from deltahub.registry.catalog.refs import create_ref
from deltahub.registry.db.models import File, Revision
from deltahub.registry.db.tables.suspects import Suspect
from deltahub.registry.db.tables.trees import Entry
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.maintenance.gc.plan import plan_gc
from deltahub.registry.quotas.limits import Limits, set_limits
from deltahub.registry.retention.drop import delete_ref
from deltahub.registry.retention.prune import Rule
from deltahub.registry.retention.rules import set_rule
from support.models import tiny_models as tiny
from support.registry.commits import caller_of
from support.registry.ingested import push_ingested
from support.registry.opened import caller, ensure_repository, push, sha256_of
from support.registry.xet_uploads import FILE, commit_file, send_all

PATH = "model.safetensors"
BASE = tiny.to_file(tiny.base())
TUNES = [tiny.to_file(tiny.finetune(scale)) for scale in (1e-5, 2e-5)]


def fill(reg: Registry) -> str:
    """Make the hub; the secret of a token of ann's. Some uploads are not ingested yet."""
    create_user(reg, "root", is_admin=True)
    ann, bob = caller(reg, "ann"), caller(reg, "bob")
    create_organization(reg, "team")
    for name in ("ann", "bob"):
        add_member(reg, "team", name, "admin")
    push_ingested(
        reg, ann, "ann/base", {PATH: BASE, "README.md": b"---\ntags: [x]\n---\n# \xc3\xa9"}
    )
    push_ingested(reg, ann, "ann/tune", {PATH: TUNES[0]}, base="ann/base")
    push_ingested(reg, bob, "team/hidden", {PATH: TUNES[1]}, private=True, base="ann/base")
    first = push(reg, bob, "bob/many", {f"d{n % 7}/{n:03}.txt": b"%d" % n for n in range(300)})
    push(reg, bob, "bob/many", {"README.md": b"second", "\u00e9/\U0001f600.txt": b"odd names"})
    create_ref(reg, bob, "bob/many", "branch", "gone", first.commit)
    create_ref(reg, bob, "bob/many", "tag", "v1", first.commit)
    push(reg, bob, "bob/many", {"gone.txt": b"gone"}, ref="gone")
    delete_ref(reg, bob, "bob/many", "branch", "gone")
    ensure_repository(reg, ann, "ann/xet")
    send_all(reg, ann, "ann/xet", FILE)
    commit_file(reg, ann, "ann/xet", FILE)
    set_limits(reg, None, "bob", Limits(repositories=5, stored_bytes=1 << 40), by_shell=True)
    set_rule(reg, bob, "bob/many", Rule(keep_last=3, older_than_s=86400))
    return tokens.create_token(reg, "ann", "write")


def shown(reg: Registry) -> dict[str, Any]:
    """What readers and operators see of the hub, with the SHA-256 of each file as it is read."""
    reader = FileReader(reg)
    plan = asdict(plan_gc(reg, lease_s=0, grace_s=0, revision_grace_s=0))
    with reg.db.read() as session:
        entries = session.execute(
            select(Revision.commit, Entry.path, File)
            .join(Entry, Entry.revision_id == Revision.id)
            .join(File, File.id == Entry.file_id)
        ).all()
    return {
        "files": {
            (commit, path): sha256_of(b"".join(reader.stream_file(file, 0, file.size)))
            for commit, path, file in entries
        },
        "lists": [
            [item.name for item in list_repositories(reg, who, search=word).items]
            for who in (None, caller_of(reg, "ann/base"), caller_of(reg, "bob/many"))
            for word in (None, "HID", "many", "n/t")
        ],
        "garbage": {name: plan[name] for name in plan if name != "made_at"},
    }


def highest_suspect(reg: Registry) -> int:
    """Delete the newest suspects; the id of the last of them, which is given to no other row."""
    with reg.db.write() as session:
        last = session.scalar(select(Suspect.id).order_by(Suspect.id.desc()).limit(1))
        assert last is not None
        session.execute(text("DELETE FROM suspects WHERE id > :few"), {"few": last - 5})
    return last
