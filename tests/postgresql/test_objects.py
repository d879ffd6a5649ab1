"""Lists of objects on PostgreSQL: in order by code point, whatever the collation."""

from deltahub.registry import Registry
from deltahub.registry.catalog.objects.keys import list_buckets
from deltahub.registry.catalog.objects.lists import Asked, list_objects
from support.registry.opened import caller, push

NAMES = ("tiny", "tiny-2", "tiny.x", "Upper", "a_b", "a-b", "AB", "ab2")


def test_models_are_listed_in_order_of_their_keys(reg: Registry) -> None:
    ann = caller(reg, "ann")
    for name in NAMES:
        push(reg, ann, f"ann/{name}", {"a.txt": b"a", "b/\uff5e.txt": b"c"})
    keys = sorted(f"{name}/{path}" for name in NAMES for path in ("a.txt", "b/\uff5e.txt"))
    found: list[str] = []
    first: str | None = ""
    while first is not None:
        with reg.db.read() as session:
            page = list_objects(session, ann, "ann", Asked(first=first, limit=3))
        found += [each.key for each in page.objects]
        first = page.next_first
    assert found == keys
    with reg.db.read() as session:
        folders = list_objects(session, ann, "ann", Asked(in_folders=True))
        assert folders.folders == sorted(f"{name}/" for name in NAMES)
        part = list_objects(session, ann, "ann", Asked(prefix="tiny", in_folders=True))
        assert part.folders == ["tiny-2/", "tiny.x/", "tiny/"]
        assert list_objects(session, ann, "ann", Asked(prefix="a\0")).n_items == 0
        assert list_objects(session, ann, "ann", Asked(first="a\0b", limit=1)).n_items == 1
        assert [each.name for each in list_buckets(session, ann, "", "", 5)] == ["ann"]
        assert list_buckets(session, ann, "b", "", 5) == []
