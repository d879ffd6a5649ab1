"""The key by which a conversion is asked for once fits into its column."""

from deltahub.registry.adapters.rules import conversion_key
from deltahub.registry.db.tables.jobs import Job


def test_the_key_of_the_longest_name_fits_and_differs_by_commit() -> None:
    name = f"{'n' * 96}/{'m' * 96}"
    keys = {conversion_key(f"{name}@{commit * 40}") for commit in "ab"}
    assert len(keys) == 2
    limit = Job.__table__.c.idempotency_key.type.length
    assert max(map(len, keys)) <= limit
