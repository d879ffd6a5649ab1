"""info and downloads: bytes of a revision, what is shared, and the frames that rebuild it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from sqlalchemy import func, select

from deltahub.codecs.dtypes import DType
from deltahub.codecs.files.recipe import Recipe
from deltahub.codecs.frames import BasePlan, FrameView, assemble, decode_frame, peek_header_length
from deltahub.codecs.ids import tensor_id
from deltahub.registry import Caller, Registry
from deltahub.registry.catalog.commit import AddFile, commit
from deltahub.registry.catalog.repositories import make_private
from deltahub.registry.db.models import File, Frame, Pack, Revision
from deltahub.registry.db.tables.trees import Entry
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.downloads.plan import plan_download, stream_frames
from deltahub.registry.errors import (
    DataLost,
    NotReady,
    RepositoryNotFound,
    RevisionNotFound,
    TensorNotFound,
)
from deltahub.registry.jobs import queue
from deltahub.registry.packs.copy import repack
from deltahub.registry.reencode.triggers import after_ingest
from deltahub.registry.reports.revision import RevisionReport, report_revision
from deltahub.registry.storage.keys import pack_key
from support.models import tiny_models
from support.registry.client_packs import weights
from support.registry.ingested import push_ingested, read_file, run_replans
from support.registry.opened import caller, opened_registry, push, sha256_of

PATH = "model.safetensors"


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as registry:
        yield registry


@pytest.fixture
def ann(reg: Registry) -> Caller:
    return caller(reg, "ann")


@pytest.fixture(scope="module")
def models() -> tuple[bytes, bytes]:
    """(base, fine-tune) of a trained model in BF16; the fine-tune's head was frozen."""
    base = tiny_models.cast(tiny_models.base(), torch.bfloat16)
    tuned = tiny_models.cast(tiny_models.finetune(1e-4), torch.bfloat16)
    tuned["head.weight"] = base["head.weight"]
    return tiny_models.to_file(base), tiny_models.to_file(tuned)


def report(
    reg: Registry, viewer: Caller | None, name: str, revision: str = "main"
) -> RevisionReport:
    return report_revision(reg, FileReader(reg), viewer, name, revision)


def frame_bytes(reg: Registry) -> int:
    with reg.db.read() as session:
        return session.scalar(select(func.sum(Frame.length))) or 0


def file_of(reg: Registry, revision: int, path: str = PATH) -> File:
    with reg.db.read() as session:
        return session.scalars(
            select(File)
            .join(Entry, Entry.file_id == File.id)
            .where(Entry.revision_id == revision, Entry.path == path)
        ).one()


def revision_of(reg: Registry, revision: int) -> Revision:
    with reg.db.read() as session:
        return session.get_one(Revision, revision)


class TestInfo:
    def test_a_base_alone_is_all_its_own(
        self, reg: Registry, ann: Caller, models: tuple[bytes, bytes]
    ) -> None:
        files = {PATH: models[0], "notes.txt": b"n" * 3000, "copy.txt": b"n" * 3000}
        push_ingested(reg, ann, "ann/base", files)
        found = report(reg, ann, "ann/base")
        assert found.totals.own == frame_bytes(reg)
        assert (found.totals.shared, found.totals.base) == (0, 0)
        assert found.size == len(models[0]) + 6000
        by_path = {file.path: file for file in found.files}
        assert [t.codec for t in by_path["notes.txt"].tensors] == ["zstd"]
        assert by_path[PATH].kind == "safetensors"
        assert {t.name for t in by_path[PATH].tensors} == set(tiny_models.base())
        assert all(t.base_depth == 0 and not t.shared for t in by_path[PATH].tensors)
        assert found.base.declared is None

    def test_a_finetune_shows_its_difference_what_it_shares_and_its_base(
        self, reg: Registry, ann: Caller, models: tuple[bytes, bytes]
    ) -> None:
        push_ingested(reg, ann, "ann/base", {PATH: models[0]})
        base_bytes = frame_bytes(reg)
        push_ingested(reg, ann, "ann/tuned", {PATH: models[1]}, base="ann/base")
        found = report(reg, ann, "ann/tuned")
        assert found.totals.own == frame_bytes(reg) - base_bytes
        tensors = {t.name: t for t in found.files[0].tensors}
        assert tensors["head.weight"].shared
        assert tensors["head.weight"].stored == found.totals.shared
        assert tensors["up.weight"].codec == "fm_delta"
        assert tensors["up.weight"].base_depth == 1
        assert 0 < found.totals.base < base_bytes
        assert found.base.declared == "ann/base"
        assert found.base.declared_status == "resolved"
        assert [m.repository for m in found.base.measured] == ["ann/base"]
        assert found.base.measured[0].share == pytest.approx(1, abs=0.1)
        # The report of the base also shows the frozen head as shared.
        assert report(reg, ann, "ann/base").totals.shared == found.totals.shared

    def test_a_declared_base_that_gives_nothing_is_shown_with_its_share(
        self, reg: Registry, ann: Caller, models: tuple[bytes, bytes]
    ) -> None:
        other = tiny_models.to_file(tiny_models.base(seed=1))
        licence = b"you may " * 400
        push_ingested(reg, ann, "ann/other", {PATH: other, "LICENCE": licence})
        files = {PATH: models[0], "LICENCE": licence}
        push_ingested(reg, ann, "ann/tuned", files, base="ann/other")
        base = report(reg, ann, "ann/tuned").base
        assert (base.declared_status, base.declared_share) == ("unused", 0.0)
        assert (base.measured, base.pending_job_id) == ((), None)

    def test_a_copy_is_told_from_a_difference(
        self, reg: Registry, ann: Caller, models: tuple[bytes, bytes]
    ) -> None:
        push_ingested(reg, ann, "ann/base", {PATH: models[0]})
        after_ingest(reg, FileReader(reg), push_ingested(reg, ann, "ann/copy", {PATH: models[0]}))
        push_ingested(reg, ann, "ann/tuned", {PATH: models[1]})
        (copied,) = report(reg, ann, "ann/copy").base.measured
        assert (copied.repository, copied.share, copied.identical) == ("ann/base", 1.0, 1.0)
        (tuned,) = report(reg, ann, "ann/tuned").base.measured[:1]
        assert 0 < tuned.identical < 0.5 < (tuned.share or 0.0)
        assert report(reg, ann, "ann/base").base.measured == ()

    def test_an_original_is_never_made_from_its_copies(
        self, reg: Registry, ann: Caller, models: tuple[bytes, bytes]
    ) -> None:
        bob = caller(reg, "bob")
        push_ingested(reg, ann, "ann/orig", {PATH: models[0]})
        after_ingest(reg, FileReader(reg), push_ingested(reg, bob, "bob/copy", {PATH: models[0]}))
        after_ingest(
            reg,
            FileReader(reg),
            push_ingested(reg, bob, "bob/secret", {PATH: models[0]}, private=True),
        )
        admin = caller(reg, "root", is_admin=True)
        # A text file; weights that are a delta of the first ones; the first ones again.
        for files in ({"README.md": b"a"}, {PATH: models[1]}, {PATH: models[0]}):
            after_ingest(reg, FileReader(reg), push_ingested(reg, ann, "ann/orig", files))
            run_replans(reg)
            for viewer in (ann, bob, admin):
                assert report(reg, viewer, "ann/orig").base.measured == (), files
        # The copy stays a copy after a commit of its own.
        after_ingest(reg, FileReader(reg), push_ingested(reg, bob, "bob/copy", {"README.md": b"b"}))
        for name in ("bob/copy", "bob/secret"):
            (copied,) = report(reg, bob, name).base.measured
            assert (copied.repository, copied.share, copied.identical) == ("ann/orig", 1.0, 1.0)

    def test_a_measured_base_that_has_become_private_is_not_named_to_strangers(
        self, reg: Registry, ann: Caller, models: tuple[bytes, bytes]
    ) -> None:
        bob = caller(reg, "bob")
        push_ingested(reg, bob, "bob/first", {PATH: models[0]})
        after_ingest(reg, FileReader(reg), push_ingested(reg, ann, "ann/tune", {PATH: models[1]}))
        assert [m.repository for m in report(reg, None, "ann/tune").base.measured] == ["bob/first"]
        make_private(reg, bob, "bob/first")
        assert [m.repository for m in report(reg, bob, "ann/tune").base.measured] == ["bob/first"]
        for viewer in (ann, None):
            assert report(reg, viewer, "ann/tune").base.measured == ()
        # A later measurement finds none either.
        after_ingest(reg, FileReader(reg), push_ingested(reg, ann, "ann/tune", {"README.md": b"a"}))
        for viewer in (ann, None, bob):
            assert report(reg, viewer, "ann/tune").base.measured == ()

    def test_files_that_are_no_weights_are_no_base(self, reg: Registry, ann: Caller) -> None:
        push_ingested(reg, ann, "ann/one", {"LICENCE": b"you may " * 400})
        push_ingested(reg, ann, "ann/two", {"LICENCE": b"you may " * 400})
        assert report(reg, ann, "ann/two").base.measured == ()

    def test_a_late_base_is_pending_until_it_was_planned_with(
        self, reg: Registry, ann: Caller, models: tuple[bytes, bytes]
    ) -> None:
        push_ingested(reg, ann, "ann/tuned", {PATH: models[1]}, base="ann/base")
        assert report(reg, ann, "ann/tuned").base.pending_job_id is None
        push_ingested(reg, ann, "ann/base", {PATH: models[0]})
        with reg.db.read() as session:
            (waiting,) = queue.next_queued(session, kinds=["replan"])
        base = report(reg, ann, "ann/tuned").base
        assert (base.declared_status, base.pending_job_id) == ("resolved", waiting.id)
        run_replans(reg)
        base = report(reg, ann, "ann/tuned").base
        assert (base.declared_status, base.pending_job_id) == ("resolved", None)
        assert base.declared_share == base.measured[0].share

    def test_what_others_keep_private_does_not_show(
        self, reg: Registry, ann: Caller, models: tuple[bytes, bytes]
    ) -> None:
        bob = caller(reg, "bob")
        push_ingested(reg, ann, "ann/base", {PATH: models[0]})
        push_ingested(reg, bob, "bob/secret", {PATH: models[1]}, private=True, base="ann/base")
        assert report(reg, bob, "ann/base").totals.shared > 0
        assert report(reg, ann, "ann/base").totals.shared == 0
        with pytest.raises(RepositoryNotFound):
            report(reg, ann, "bob/secret")
        found = report(reg, bob, "bob/secret")
        assert found.totals.base > 0
        assert [m.repository for m in found.base.measured] == ["ann/base"]

    def test_a_base_that_is_absent_or_not_readable_is_called_absent(
        self, reg: Registry, ann: Caller, models: tuple[bytes, bytes]
    ) -> None:
        bob = caller(reg, "bob")
        push_ingested(reg, bob, "bob/secret", {PATH: models[0]}, private=True)
        push_ingested(reg, ann, "ann/one", {PATH: models[1]}, base="bob/secret")
        push_ingested(reg, ann, "ann/two", {"a.txt": b"a"}, base="nobody/nothing")
        for name in ("ann/one", "ann/two"):
            base = report(reg, ann, name).base
            assert (base.declared_status, base.commit, base.measured) == ("absent", None, ())

    def test_a_revision_that_is_not_ingested_shows_what_was_uploaded(
        self, reg: Registry, ann: Caller, models: tuple[bytes, bytes]
    ) -> None:
        push(reg, ann, "ann/base", {PATH: models[0]})
        found = report(reg, ann, "ann/base")
        assert found.files[0].state == "landed"
        assert found.files[0].tensors == []
        assert found.totals.own == found.files[0].stored.own == len(models[0])

    def test_a_file_that_is_not_what_its_name_says_is_noted(
        self, reg: Registry, ann: Caller
    ) -> None:
        push_ingested(reg, ann, "ann/odd", {PATH: b"not a header" * 300})
        (file,) = report(reg, ann, "ann/odd").files
        assert file.kind == "opaque"
        assert file.note

    def test_an_unknown_revision_is_said_so(self, reg: Registry, ann: Caller) -> None:
        push_ingested(reg, ann, "ann/m", {"a.txt": b"a"})
        with pytest.raises(RevisionNotFound):
            report(reg, ann, "ann/m", "other")


class TestDownloads:
    @pytest.fixture(autouse=True)
    def _pushed(self, reg: Registry, ann: Caller, models: tuple[bytes, bytes]) -> None:
        push_ingested(reg, ann, "ann/base", {PATH: models[0]})
        push_ingested(reg, ann, "ann/tuned", {PATH: models[1], "a.txt": b"a" * 2000})

    def test_recipe_and_frames_rebuild_the_file(
        self, reg: Registry, models: tuple[bytes, bytes]
    ) -> None:
        reader, file = FileReader(reg), file_of(reg, 2)
        plan = plan_download(reg, reader, None, file)
        data = reader.read_recipe(file)
        assert tensor_id(data) == plan.recipe
        known = dict(self._decode(reg, 1, {}))
        known.update(self._decode(reg, 2, known))
        recipe = Recipe.from_bytes(data)
        rebuilt = b"".join(
            segment.data if hasattr(segment, "data") else known[segment.tensor]
            for segment in recipe.segments
        )
        assert rebuilt == models[1]
        assert any(tensor.bases for tensor in plan.tensors)

    def _decode(
        self, reg: Registry, revision: int, known: dict[bytes, bytes]
    ) -> list[tuple[bytes, bytes]]:
        """(id, bytes) of the tensors of a revision's model, decoded as a client would."""
        reader = FileReader(reg)
        plan = plan_download(reg, reader, None, file_of(reg, revision))
        ids = [tensor.id for tensor in plan.tensors]
        stream = stream_frames(reg, reader, None, revision_of(reg, revision), ids)
        data = b"".join(stream.chunks)
        assert len(data) == stream.n_bytes == sum(t.encoded_size for t in plan.tensors)
        decoded = []
        for tensor in plan.tensors:
            out = b""
            while len(out) < tensor.size:
                view = FrameView.parse(data)
                frame, data = data[: view.header.frame_length], data[view.header.frame_length :]
                assert peek_header_length(frame[:16]) == view.header.header_length
                out += decode_frame(frame, _base(view.header.base, view, known))
            assert tensor_id(out) == tensor.id
            decoded.append((tensor.id, out))
        return decoded

    def test_only_tensors_of_the_revision_are_handed_out(self, reg: Registry, ann: Caller) -> None:
        push_ingested(reg, ann, "ann/other", {"b.bin": weights(5000)})
        wanted = [tensor_id(weights(5000))]
        assert stream_frames(reg, FileReader(reg), None, revision_of(reg, 3), wanted).n_bytes > 0
        for revision in (1, 2):
            with pytest.raises(TensorNotFound):
                stream_frames(reg, FileReader(reg), None, revision_of(reg, revision), wanted)
        with pytest.raises(TensorNotFound):
            stream_frames(reg, FileReader(reg), None, revision_of(reg, 1), [bytes(32)])

    def test_frames_go_on_from_a_copy_of_their_pack(self, reg: Registry) -> None:
        ids = [t.id for t in plan_download(reg, FileReader(reg), None, file_of(reg, 1)).tensors]
        whole = b"".join(stream_frames(reg, FileReader(reg), None, revision_of(reg, 1), ids).chunks)
        stream = stream_frames(reg, FileReader(reg), None, revision_of(reg, 1), ids)
        with reg.db.read() as session:
            packs = session.scalars(select(Pack.id)).all()
        repack(reg, packs)
        for pack in packs:
            reg.store.delete(pack_key(pack))
        assert b"".join(stream.chunks) == whole

    def test_frames_that_are_gone_are_data_loss(self, reg: Registry) -> None:
        ids = [t.id for t in plan_download(reg, FileReader(reg), None, file_of(reg, 1)).tensors]
        stream = stream_frames(reg, FileReader(reg), None, revision_of(reg, 1), ids)
        for info in list(reg.store.list("packs/")):
            reg.store.delete(info.key)
        with pytest.raises(DataLost):
            b"".join(stream.chunks)

    def test_bytes_of_two_domains_come_from_the_repositorys_own(
        self, reg: Registry, ann: Caller
    ) -> None:
        bob, tensor = caller(reg, "bob"), tiny_models.base(seed=1)["up.weight"]
        shared, model = tensor.numpy().tobytes(), tiny_models.to_file({"w": tensor})
        push_ingested(reg, bob, "bob/hidden", {"x.bin": shared}, private=True)
        push_ingested(reg, ann, "ann/open", {PATH: model})
        push_ingested(reg, bob, "bob/mixed", {"x.bin": shared}, private=True)
        commit(reg, bob, "bob/mixed", "main", [AddFile(PATH, sha256_of(model), len(model))])
        assert file_of(reg, 6, "x.bin").domain_id != file_of(reg, 6).domain_id
        stream = stream_frames(reg, FileReader(reg), None, revision_of(reg, 6), [tensor_id(shared)])
        assert FrameView.parse(b"".join(stream.chunks)).header.dtype is DType.U8

    def test_a_file_that_is_not_ingested_has_no_plan(self, reg: Registry, ann: Caller) -> None:
        push(reg, ann, "ann/late", {"late.bin": weights(999)})
        with pytest.raises(NotReady):
            plan_download(reg, FileReader(reg), None, file_of(reg, 3, "late.bin"))
        assert read_file(reg, 3, "late.bin") == weights(999)


def _base(plan: BasePlan | None, view: FrameView, known: dict[bytes, bytes]) -> bytearray | None:
    if plan is None:
        return None
    out = bytearray(view.header.size_bytes)

    def read(tensor: bytes, first: int, into: memoryview) -> None:
        into[:] = known[tensor][first : first + into.nbytes]

    assemble(plan, view.header.dtype, 0, view.header.count, read, memoryview(out))
    return out
