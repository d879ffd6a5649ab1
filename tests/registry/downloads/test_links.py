"""A link covers frames that were asked and may be read, and no byte of a pack besides."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from sqlalchemy import select

from deltahub.registry import Caller, Registry, Settings
from deltahub.registry.db.models import Frame, Pack, Revision, Tensor
from deltahub.registry.downloads import links
from deltahub.registry.downloads.links import LinkPage, link_frames, link_origin
from deltahub.registry.packs.copy import repack
from deltahub.registry.settings import WrongSetting
from deltahub.registry.storage.local import FileStore
from support.models import tiny_models as tiny
from support.registry.ingested import push_ingested, stored_tensors
from support.registry.opened import caller, opened_registry

PATH = "model.safetensors"


@pytest.fixture
def reg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """A hub whose folder of objects gives links that name their range."""

    def link(store: FileStore, key: str, start: int, end: int, lifetime_s: int) -> str:
        return f"https://s3.test/{key}?{start}-{end}&{lifetime_s}"

    monkeypatch.setattr(FileStore, "link", link)
    with opened_registry(tmp_path, s3_link_endpoint="https://s3.test") as registry:
        yield registry


@pytest.fixture
def ann(reg: Registry) -> Caller:
    return caller(reg, "ann")


def model(seed: int) -> bytes:
    return tiny.to_file(tiny.base(seed))


def tensors_of(reg: Registry, revision: int) -> dict[bytes, int]:
    """Content id -> row of each tensor of the model."""
    rows = [each.id for each in stored_tensors(reg, revision).values()]
    with reg.db.read() as session:
        found = session.execute(select(Tensor.hash, Tensor.id).where(Tensor.id.in_(rows))).all()
    return {content: row for content, row in found}


def ask(reg: Registry, who: Caller, revision: int, tensors: Sequence[bytes]) -> LinkPage:
    with reg.db.read() as session:
        row = session.get_one(Revision, revision)
    return link_frames(reg, who, row, tensors)


def linked_bytes(page: LinkPage) -> set[tuple[str, int]]:
    """(pack, byte) of every byte that a link of the page gives."""
    found: set[tuple[str, int]] = set()
    for link in page.links:
        key, _, rest = link.url.removeprefix("https://s3.test/").partition("?")
        assert rest == f"{link.start}-{link.end}&300"
        assert sum(length for _, length in link.frames) == link.end - link.start
        found |= {(key[-32:], byte) for byte in range(link.start, link.end)}
    return found


def bytes_of(reg: Registry, rows: Sequence[int]) -> set[tuple[str, int]]:
    """(pack, byte) of every byte of the frames of these tensors."""
    with reg.db.read() as session:
        frames = session.scalars(select(Frame).where(Frame.tensor_id.in_(rows))).all()
    return {
        (frame.pack_id, byte)
        for frame in frames
        for byte in range(frame.offset, frame.offset + frame.length)
    }


def test_links_have_the_frames_and_nothing_between_them(reg: Registry, ann: Caller) -> None:
    """Two private models, whose frames a repack has put into one pack."""
    mine = push_ingested(reg, ann, "ann/mine", {PATH: model(1)}, private=True)
    push_ingested(reg, ann, "ann/other", {PATH: model(2)}, private=True)
    with reg.db.read() as session:
        packs = session.scalars(select(Pack.id)).all()
    repack(reg, packs)
    stored = tensors_of(reg, mine)
    whole = ask(reg, ann, mine, list(stored))
    assert linked_bytes(whole) == bytes_of(reg, [*stored.values()])
    assert len(whole.links) < len(stored)  # neighbours share a link
    some = list(stored)[::2]
    assert linked_bytes(ask(reg, ann, mine, some)) == bytes_of(reg, [stored[t] for t in some])


def test_a_tensor_of_another_model_has_no_link(reg: Registry, ann: Caller) -> None:
    mine = push_ingested(reg, ann, "ann/mine", {PATH: model(1)})
    other = push_ingested(reg, ann, "ann/other", {PATH: model(2)}, private=True)
    page = ask(reg, ann, mine, [*tensors_of(reg, other)])
    assert page.links == ()
    assert page.n_tensors == len(tensors_of(reg, other))


def test_pages_are_bounded_and_together_have_every_frame(
    reg: Registry, ann: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "PAGE_FRAMES", 3)
    data = tiny.to_file({f"t{i}": torch.full((3000,), float(i)) for i in range(8)})
    mine = push_ingested(reg, ann, "ann/mine", {PATH: data})
    left, found = [*tensors_of(reg, mine)], set[tuple[str, int]]()
    while left:
        page = ask(reg, ann, mine, left)
        assert 0 < page.n_tensors <= 3
        found |= linked_bytes(page)
        left = left[page.n_tensors :]
    assert found == bytes_of(reg, [*tensors_of(reg, mine).values()])


def test_a_link_is_no_longer_than_a_client_reads_at_once(
    reg: Registry, ann: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = push_ingested(reg, ann, "ann/mine", {PATH: model(1)})
    monkeypatch.setattr(links, "LINK_BYTES", 1)
    page = ask(reg, ann, mine, [*tensors_of(reg, mine)])
    assert all(len(link.frames) == 1 for link in page.links)


def test_a_hub_without_the_setting_gives_none(reg: Registry, ann: Caller) -> None:
    mine = push_ingested(reg, ann, "ann/mine", {PATH: model(1)})
    assert link_origin(reg) == "https://s3.test"
    reg.settings = Settings(data_dir=reg.data_dir)
    assert link_origin(reg) is None
    assert ask(reg, ann, mine, [*tensors_of(reg, mine)]).links == ()


def test_a_link_may_not_outlive_the_pack_that_it_names() -> None:
    with pytest.raises(WrongSetting, match="READ_LEASE_S=60, so that links"):
        Settings(s3_link_endpoint="https://s3.test", read_lease_s=60)
    Settings(read_lease_s=60)
    Settings(s3_link_endpoint="https://s3.test", read_lease_s=60, s3_link_lifetime_s=60)


@pytest.mark.parametrize(
    "url", ["s3.test", "ftp://s3.test", "https://me:secret@s3.test", "https://"]
)
def test_an_endpoint_that_no_client_can_use_is_refused(url: str) -> None:
    with pytest.raises(WrongSetting, match="DELTAHUB_S3_LINK_ENDPOINT") as refused:
        Settings(s3_link_endpoint=url)
    assert "secret" not in refused.value.message
