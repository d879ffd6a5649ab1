"""What ingest jobs leave behind: results that reveal nothing, and facts that a crash left out."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from deltahub.registry.cards.describe import load_facts
from deltahub.registry.catalog.lists.search import search
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.workers.context import JobContext
from deltahub.workers.jobs.ingest import ingest
from support.models import tiny_models as tiny
from support.registry.commits import revision
from support.registry.ingested import push_ingested
from support.registry.opened import caller, opened_registry, push

T = TypeVar("T")


def at_once(name: str, function: Callable[[], T]) -> T:
    return function()


def test_an_ingest_does_not_count_the_private_relatives_of_others(tmp_path: Path) -> None:
    """A user who publishes somebody's base must not learn that a private fine-tune of it exists."""
    results = []
    for is_related in (False, True):
        with opened_registry(tmp_path / str(is_related)) as reg:
            ann, bob = caller(reg, "ann"), caller(reg, "bob")
            if is_related:
                secret = {"m.safetensors": tiny.to_file(tiny.finetune(1e-5))}
                push_ingested(reg, bob, "bob/secret", secret, private=True, base="ann/base")
            pushed = push(reg, ann, "ann/base", {"m.safetensors": tiny.to_file(tiny.base())})
            assert pushed.job_id is not None
            with reg.db.write() as session:
                job = session.get_one(Job, pushed.job_id)
                job.state = "running"
            context = JobContext(reg, FileReader(reg), job.id, at_once)
            results.append(ingest(context, job.payload))
            with reg.db.read() as session:
                assert bool(session.query(Job).filter_by(kind="replan").count()) == is_related
    assert results[0] == results[1]


def test_an_ingest_writes_the_facts_that_a_server_died_before_writing(tmp_path: Path) -> None:
    with opened_registry(tmp_path) as reg:
        # The commit alone, as it is when the server is killed right after it.
        files = {
            "README.md": b"---\ntags: [mine]\n---\n",
            "a.safetensors": tiny.to_file(tiny.base()),
        }
        pushed = push(reg, caller(reg, "ann"), "ann/m", files)
        head = revision(reg, "ann/m").id
        with reg.db.write() as session:
            assert load_facts(session, [head], with_files=False) == {}
            job = session.get_one(Job, pushed.job_id)
            job.state = "running"
        ingest(JobContext(reg, FileReader(reg), job.id, at_once), job.payload)
        with reg.db.read() as session:
            facts = load_facts(session, [head], with_files=False)[head]
            assert facts.tags == ["safetensors", "mine"]
            assert facts.parameters == {"F32": sum(one.numel() for one in tiny.base().values())}
            found = search(session, None, keys=[frozenset({"mine"})]).items
            assert [one.name for one in found] == ["ann/m"]
