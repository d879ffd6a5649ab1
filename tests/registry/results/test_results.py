"""What a job makes of models: tensors and files that become a repository."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load

from deltahub.codecs.frames import encode_frame, split_frames, tensor_spec
from deltahub.registry import Caller, Registry
from deltahub.registry.catalog.repositories import create_repository
from deltahub.registry.db.models import File, Ref, Repository
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import DataLost, RepositoryExists, RevisionNotFound, Unavailable
from deltahub.registry.jobs import queue
from deltahub.registry.maintenance.fsck.run import fsck
from deltahub.registry.packs.encoder_generation import generation_of
from deltahub.registry.results.files import FileMaker
from deltahub.registry.results.inputs import load_model
from deltahub.registry.results.publish import Branch, Result, publish
from deltahub.registry.results.stored import stored_bytes, stored_tensors
from deltahub.registry.results.tensors import UNNAMED, MadePack, MadeTensor
from support.models import tiny_models as tiny
from support.registry.ingested import push_ingested, read_file
from support.registry.opened import caller, opened_registry, push

PATH = "model.safetensors"
CONFIG = b'{"model_type": "tiny"}\n'


@dataclass
class Work:
    """A registry with one model, and a job that makes another of it."""

    reg: Registry
    ann: Caller
    model: int
    job: str


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Work]:
    with opened_registry(tmp_path) as reg:
        ann = caller(reg, "ann")
        files = {PATH: tiny.to_file(tiny.base()), "config.json": CONFIG}
        model = push_ingested(reg, ann, "ann/base", files)
        with reg.db.write() as session:
            job = queue.enqueue(session, "merge", {}, None, ann.user_id)
            assert queue.mark_running(session, job)
        yield Work(reg, ann, model, job)


def make_tensor(work: Work, domain: int, tensor: torch.Tensor) -> bytes:
    """Store a tensor as a job does that knows its hash only at the end; its content id."""
    data = memoryview(tensor.numpy().tobytes())
    spec = tensor_spec(UNNAMED, "F32", tuple(tensor.shape))
    with MadePack(work.reg, FileReader(work.reg), domain, work.job) as pack:
        with MadeTensor(work.reg) as made:
            for part in split_frames(spec, 1 << 14):
                piece = data[part.start * 4 : (part.start + part.count) * 4]
                made.add(encode_frame(spec, part, piece), piece)
            content = pack.add(made, generation_of(work.reg.settings.effort))
        pack.store(max_depth=2)
    return content


def make_result(work: Work, name: str = "ann/made") -> tuple[Result, dict[str, torch.Tensor]]:
    reader = FileReader(work.reg)
    model = load_model(work.reg, reader, work.model, work.job)
    changed = tiny.base()["up.weight"] * 2
    content = make_tensor(work, model.domain_id, changed)
    recipe = next(file.recipe for file in model.files if file.path == PATH)
    assert recipe is not None
    maker = FileMaker(work.reg, reader, model.domain_id, work.job)
    row = maker.replace_tensors(recipe, {"up.weight": content})
    files = {file.path: file.row for file in model.files} | {PATH: row}
    texts = {"README.md": b"# made\n"}
    branches = [Branch(ref, "made", files, texts, [work.model]) for ref in ("main", "task")]
    base = f"ann/base@{model.commit}", work.model
    return Result(name, False, "merge", base, branches), tiny.base() | {"up.weight": changed}


def revisions(reg: Registry, repository: int) -> dict[str, int]:
    with reg.db.read() as session:
        refs = session.query(Ref).where(Ref.repository_id == repository)
        return {ref.name: ref.revision_id for ref in refs}


def test_all_branches_appear_at_once_and_hold_the_made_tensors(work: Work) -> None:
    result, expected = make_result(work)
    publish(work.reg, work.ann, work.job, result)
    with work.reg.db.read() as session:
        repository = session.get_one(Job, work.job).repository_id
        assert repository is not None
        assert session.get_one(Repository, repository).role == "merge"
    found = revisions(work.reg, repository)
    assert found.keys() == {"main", "task"}
    for revision in found.values():
        tensors = load(read_file(work.reg, revision, PATH))
        assert all(torch.equal(tensors[name], expected[name]) for name in expected)
        assert read_file(work.reg, revision, "config.json") == CONFIG
        assert read_file(work.reg, revision, "README.md") == b"# made\n"
    assert list(fsck(work.reg, read_data=True)) == []


def test_stored_bytes_are_those_of_the_tensors_frames(work: Work) -> None:
    contents = [
        make_tensor(work, 1, values)
        for values in (torch.zeros(64, 64), tiny.base()["up.weight"] * 2)
    ]
    rows = stored_tensors(work.reg, 1, contents)
    zeros, weights = (rows[content] for content in contents)
    assert 0 < stored_bytes(work.reg, [zeros]) < 1000
    both = stored_bytes(work.reg, [zeros, weights, zeros])
    assert both == stored_bytes(work.reg, [zeros]) + stored_bytes(work.reg, [weights])


def test_a_lost_file_is_named_and_not_waited_for(work: Work) -> None:
    with work.reg.db.write() as session:
        session.query(File).where(File.kind == "safetensors").one().state = "lost"
    with pytest.raises(DataLost, match=r"model\.safetensors of ann/base is lost: push it again"):
        load_model(work.reg, FileReader(work.reg), work.model, work.job)


def test_publishing_again_changes_nothing(work: Work) -> None:
    result, _ = make_result(work)
    commit = publish(work.reg, work.ann, work.job, result)
    assert publish(work.reg, work.ann, work.job, result) == commit


def test_a_name_that_was_taken_meanwhile_is_refused_and_nothing_is_published(work: Work) -> None:
    result, _ = make_result(work)
    create_repository(work.reg, work.ann, "ann/made")
    with pytest.raises(RepositoryExists):
        publish(work.reg, work.ann, work.job, result)
    with work.reg.db.read() as session:
        assert session.get_one(Job, work.job).repository_id is None


def test_making_the_same_file_twice_makes_one_row(work: Work) -> None:
    first, _ = make_result(work)
    second, _ = make_result(work)
    assert first.branches[0].files == second.branches[0].files


def test_a_model_that_waits_for_its_ingest_is_not_read(work: Work) -> None:
    pushed = push(work.reg, work.ann, "ann/new", {PATH: tiny.to_file(tiny.task(0))})
    with work.reg.db.read() as session:
        repository = session.query(Repository).where(Repository.name == "new").one().id
    revision = revisions(work.reg, repository)["main"]
    assert pushed.job_id is not None
    with pytest.raises(Unavailable, match=r"model\.safetensors of ann/new waits"):
        load_model(work.reg, FileReader(work.reg), revision, work.job)


def test_a_model_that_was_deleted_meanwhile_is_named_as_such(work: Work) -> None:
    with pytest.raises(RevisionNotFound, match="deleted meanwhile"):
        load_model(work.reg, FileReader(work.reg), 10_000, work.job)
