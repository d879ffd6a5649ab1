"""How an upload is cut into parts. All but the last have one size, which R2 demands."""

from typing import Final

# S3 takes no smaller part than 5 MiB, except the last.
PART_BYTES: Final = 16 << 20
MOST_PARTS: Final = 10_000
# So many parts are sent before the database records them, while a long request goes on.
RECORDED_TOGETHER: Final = 4


def part_bytes_of(total: int) -> int:
    """The size of the parts of an upload, so that there are MOST_PARTS at most."""
    return max(PART_BYTES, -(-total // MOST_PARTS))
