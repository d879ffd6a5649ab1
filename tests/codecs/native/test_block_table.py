"""The block table of a frame says how each block is stored; malformed tables are refused."""

import subprocess
import sys

import pytest

from deltahub.codecs import DType, Geometry
from deltahub.codecs._native import BlockTable, decode_uncoded_range
from deltahub.codecs.frames.header import TABLE_ROW
from support.codecs.deltas import block_table

WORDS = Geometry(DType.U16, 5, 10, 2, 1)  # blocks of 40, 40 and 20 bytes
ROWS_OF_TABLE = [(0, 0, 1), (40, 1, 2), (19, 2, 3)]  # length, mode, checksum


def test_a_table_says_how_blocks_are_stored_and_where() -> None:
    table = block_table(WORDS, ROWS_OF_TABLE, has_base=True)
    assert table.rows(0, 3) == [(mode, length, check) for length, mode, check in ROWS_OF_TABLE]
    assert table.rows(1, 2) == [(1, 40, 2)]
    assert [table.stored_span(i, 3) for i in range(3)] == [(0, 59), (0, 59), (40, 59)]
    assert [table.stored_span(0, i) for i in (1, 2, 3)] == [(0, 0), (0, 40), (0, 59)]


@pytest.mark.parametrize(
    ("place", "row"),
    [
        (0, (1, 0, 1)),
        (0, (40, 3, 1)),
        (0, (40, 255, 1)),
        (1, (39, 1, 2)),
        (1, (41, 1, 2)),
        (1, (0, 2, 2)),
        (1, (40, 2, 2)),
        (1, (2**32 - 1, 2, 2)),
        (2, (40, 1, 3)),
        (2, (20, 2, 3)),
    ],
)
def test_a_block_that_no_encoder_writes_is_refused(place: int, row: tuple[int, int, int]) -> None:
    rows = [*ROWS_OF_TABLE]
    rows[place] = row
    with pytest.raises(ValueError, match=f"^a block of mode {row[1]} with {row[0]} stored bytes$"):
        block_table(WORDS, rows, has_base=True)


def test_blocks_cannot_be_those_of_a_base_that_there_is_not() -> None:
    with pytest.raises(ValueError, match="a block of mode 0 with 0 stored bytes"):
        block_table(WORDS, ROWS_OF_TABLE, has_base=False)


@pytest.mark.parametrize("n_rows", [0, 2, 4])
def test_a_table_has_a_row_for_each_block(n_rows: int) -> None:
    with pytest.raises(ValueError, match="for each block"):
        block_table(WORDS, [(40, 1, 0)] * n_rows, has_base=False)


CUT = {"rows": 5, "columns": 10, "word_bytes": 2, "rows_per_block": 2, "parts": 1}


@pytest.mark.parametrize(
    "changes",
    [
        *({name: 0} for name in CUT),
        {"rows": 1},
        {"rows": 2**63},
        {"columns": 2**62},
        {"rows_per_block": 6},
        {"rows_per_block": 2**64 - 1},
        {"parts": 2},
        {"rows_per_block": 1, "parts": 11},
        {"rows_per_block": 1, "parts": 7},
        {"rows_per_block": 1, "parts": 2**64 - 1},
    ],
)
def test_a_table_of_a_frame_that_is_cut_into_no_such_blocks_is_refused(
    changes: dict[str, int],
) -> None:
    rows = b"".join([TABLE_ROW.pack(*row) for row in ROWS_OF_TABLE])
    table = {"has_base": True, "stored_bytes": 59}
    BlockTable(rows, **CUT, **table)
    with pytest.raises(ValueError, match=r"rows x columns|whole rows"):
        BlockTable(rows, **(CUT | changes), **table)


def test_a_frame_too_large_for_any_machine_has_all_its_blocks() -> None:
    most = 2**64 - 1
    cuts = [(most, 1, 1, 2, 1, 2**63), (most, 1, 1, most, 1, 1), (1, most, 1, 1, 2, 2)]
    for *cut, n_blocks in cuts:
        with pytest.raises(ValueError, match="for each block"):
            BlockTable(b"", *cut, has_base=False, stored_bytes=0)
        if n_blocks < 3:
            rows = TABLE_ROW.pack(9, 2, 0) * n_blocks
            table = BlockTable(rows, *cut, has_base=False, stored_bytes=9 * n_blocks)
            assert table.stored_span(0, n_blocks) == (0, 9 * n_blocks)


@pytest.mark.parametrize("n_bytes", [1, 15, 16, 47])
def test_a_table_that_is_cut_off_is_refused(n_bytes: int) -> None:
    rows = b"".join([TABLE_ROW.pack(*row) for row in ROWS_OF_TABLE])
    with pytest.raises(ValueError, match="for each block"):
        BlockTable(rows[:n_bytes], **CUT, has_base=True, stored_bytes=59)


@pytest.mark.parametrize("stored_bytes", [0, 58, 60, 2**64 - 1])
def test_the_lengths_of_a_table_make_the_stored_bytes(stored_bytes: int) -> None:
    rows = b"".join([TABLE_ROW.pack(*row) for row in ROWS_OF_TABLE])
    with pytest.raises(ValueError, match="do not sum"):
        BlockTable(rows, **CUT, has_base=True, stored_bytes=stored_bytes)


@pytest.mark.parametrize("span", [(0, 0), (1, 1), (2, 1), (0, 4), (3, 4), (2**64 - 1, 2**64 - 1)])
def test_blocks_that_a_table_lacks_are_refused(span: tuple[int, int]) -> None:
    table = block_table(WORDS, ROWS_OF_TABLE, has_base=True)
    out = bytearray(100)
    for ask in (
        table.rows,
        table.stored_span,
        lambda *span: decode_uncoded_range(table, *span, bytes(59), bytes(100), out, 1),
    ):
        with pytest.raises(ValueError, match="no such blocks"):
            ask(*span)


HELD_AT_THE_END = """
import threading, time
from deltahub.codecs._native import BlockTable
table = BlockTable(bytes(16), 1, 1, 1, 1, 1, True, 0)
threading.Thread(target=lambda held: time.sleep(60), args=(table,), daemon=True).start()
"""


def test_a_process_that_ends_while_a_thread_reads_a_frame_says_nothing() -> None:
    command = [sys.executable, "-c", HELD_AT_THE_END]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert (run.stdout, run.stderr) == ("", "")
