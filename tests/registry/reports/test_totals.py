"""Totals of a hub for monitoring are right, and cost little however much the hub holds."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from deltahub.registry import Registry
from deltahub.registry.db.tables.scrub import FoundDamage
from deltahub.registry.jobs import queue
from deltahub.registry.reports import codec_totals, hub_totals
from deltahub.registry.reports.codec_totals import CodecCount, CodecTotal
from deltahub.registry.reports.hub_totals import (
    JobTotal,
    connections_in_use,
    read_totals,
)
from support.registry.opened import caller, opened_registry, push

MANY = 20_000
_NUMBERS = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {MANY})"
_AT = "'2026-01-01 00:00:00'"


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as opened:
        yield opened


def test_totals_are_those_of_the_rows(reg: Registry) -> None:
    ann = caller(reg, "ann")
    push(reg, ann, "ann/one", {"a.bin": b"12345"})
    push(reg, ann, "ann/two", {"a.bin": b"12345", "b.bin": b"123"}, private=True)
    with reg.db.write() as session:
        failed = queue.enqueue(session, "replan", {})
        queue.mark_failed(session, failed, "job_failed", "no")
        damage = {"text": "", "affected": {}}
        session.add(FoundDamage(kind="pack", object_id="1", code="gone", **damage))
        session.add(FoundDamage(kind="pack", object_id="2", code="gone", state="gone", **damage))
    totals = read_totals(reg)
    assert (totals.n_repositories, totals.n_users) == (2, 1)
    assert totals.logical_bytes == 5 + 8
    assert totals.stored_bytes == {"pack": 0, "copy": 0, "upload": 8, "xorb": 0}
    assert totals.findings == {"pack": 1}
    jobs = {(j.kind, j.lane, j.state): j.n_jobs for j in totals.jobs}
    assert jobs == {("ingest", "store", "queued"): 2, ("replan", "store", "failed"): 1}
    with reg.db.write() as session:
        for job in queue.next_queued(session, 9):
            queue.mark_running(session, job.id)
    assert {job.state for job in read_totals(reg).jobs} == {"running", "failed"}
    assert connections_in_use(reg) == {"read": 0, "write": 0}


def fill(reg: Registry) -> None:
    """Give the tables as many rows as a large hub has, and more jobs than are counted."""
    with reg.db.write() as session:
        for statement in (
            "INSERT INTO namespaces (id, name, kind) VALUES (1, 'ann', 'user')",
            "INSERT INTO domains (id, key) VALUES (1, 'public')",
            "INSERT INTO repositories (id, namespace_id, name, domain_id, is_private, created_at)"
            f" {_NUMBERS} SELECT i, 1, 'r' || i, 1, 0, {_AT} FROM n",
            "INSERT INTO repository_usage (repository_id, stored_bytes, logical_bytes)"
            f" {_NUMBERS} SELECT i, 1, 2 FROM n",
            "INSERT INTO packs (id, domain_id, state, size, created_at)"
            f" {_NUMBERS} SELECT 'p' || i, 1, 'live', 10, {_AT} FROM n",
            "INSERT INTO tensors (id, domain_id, hash, size, depth, is_foreign, created_at)"
            f" {_NUMBERS} SELECT i, 1, 'h' || i, 100, 0, 0, {_AT} FROM n",
            'INSERT INTO frames (tensor_id, start, size, pack_id, "offset", length, codec, tried)'
            f" {_NUMBERS} SELECT i, 0, 100, 'p' || i, 0, 10, i % 2, 0 FROM n",
            "INSERT INTO jobs (id, kind, payload, state, is_cancel_asked, created_at)"
            f" {_NUMBERS} SELECT 'q' || i, 'ingest', '{{}}', 'queued', 0, {_AT} FROM n",
            "INSERT INTO jobs (id, kind, payload, state, is_cancel_asked, created_at)"
            f" {_NUMBERS} SELECT 'd' || i, 'ingest', '{{}}', 'done', 0, {_AT} FROM n",
        ):
            session.execute(text(statement))


def test_totals_of_a_hub_with_very_many_rows_take_a_moment(
    reg: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_totals, "MOST_JOBS", MANY // 2)
    fill(reg)
    began = time.monotonic()
    totals = read_totals(reg)
    assert time.monotonic() - began < 3  # some 20 ms on an idle machine
    assert totals.n_repositories == MANY
    assert totals.logical_bytes == 2 * MANY
    assert totals.stored_bytes["pack"] == 10 * MANY
    (queued,) = totals.jobs
    assert queued == JobTotal("ingest", "store", "queued", MANY // 2, queued.oldest_at)
    codecs = CodecCount(reg)
    assert not codecs.is_known
    for _ in range(100):  # each call reads for half a second at most
        if codecs.is_known:
            break
        codecs.go_on()
    each = CodecTotal(MANY // 2, 100 * MANY // 2, 10 * MANY // 2)
    assert codecs.totals == {0: each, 1: each}


def test_frames_are_counted_in_pieces_and_again_after_a_pause(
    reg: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codec_totals, "_PIECE", 7_001)
    monkeypatch.setattr(codec_totals, "_CALL_S", 0.0)
    fill(reg)
    codecs = CodecCount(reg)
    n_calls = 0
    while not codecs.is_known:
        codecs.go_on()
        n_calls += 1
    assert n_calls == MANY // 7_001 + 2
    assert sum(each.n_frames for each in codecs.totals.values()) == MANY
    with reg.db.write() as session:
        session.execute(text("DELETE FROM frames WHERE codec = 1"))
    codecs.go_on()
    assert set(codecs.totals) == {0, 1}  # it rests
    monkeypatch.setattr(codec_totals, "PAUSE_S", 0.0)
    monkeypatch.setattr(codec_totals, "_REST", 0)
    again = CodecCount(reg)
    for _ in range(2 * n_calls):
        again.go_on()
    assert set(again.totals) == {0}
