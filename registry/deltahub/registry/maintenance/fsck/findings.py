"""The findings of fsck, and the code of each kind."""

from collections.abc import Iterator
from dataclasses import dataclass

from deltahub.registry.errors import Unavailable
from deltahub.registry.storage.base import StoreUnavailable

# Code -> meaning; docs and `deltahub fsck --help` show both.
CODES = {
    "database_damaged": "the database's own check finds damage in its file",
    "row_reference": "rows refer to rows that are not there",
    "row_undecodable": "a row holds a value that its column cannot hold",
    "check_stopped": "a check could not go on, because the database is damaged",
    "ref_dangling": "a branch or tag points at no revision of its repository",
    "head_wrong": "lists of models show another revision than the head of main",
    "entry_dangling": "a revision lists a file that has no row, or is not verified",
    "tree_wrong": "the tree of a revision is out of order, or its sums are not those of its files",
    "file_incomplete": "a file's row names neither an upload nor a recipe that is there",
    "file_tensors": "a file's recipe and the rows of the tensors it needs differ",
    "file_domain": "a file refers to a tensor that it may not refer to",
    "file_unreadable": "a file cannot be rebuilt",
    "file_hash": "a file is rebuilt to other bytes than were pushed",
    "file_lost": "a file is marked as lost: push it again",
    "recipe_unreadable": "a file's recipe cannot be read",
    "landing_missing": "the bytes of a complete upload are gone",
    "landing_size": "the bytes of an upload are more or fewer than its row says",
    "landing_hash": "the bytes of an upload are not those that were pushed",
    "xorb_missing": "the bytes of a xorb, part of an upload by Xet, are gone: upload it again",
    "xorb_size": "the bytes of a xorb are more or fewer than its row says",
    "xorb_hash": "the bytes of a xorb are not those that were uploaded",
    "tensor_frames": "a tensor's frames leave gaps or overlap",
    "tensor_unreadable": "a tensor cannot be decoded",
    "tensor_lost": "a tensor that no file has any more is marked as lost; differences need it",
    "tensor_hash": "a tensor decodes to other bytes",
    "frame_pack": "a frame lies in a pack that is not in use, or of another domain",
    "frame_bounds": "frames overlap in a pack, or leave it",
    "frame_header": "a frame says something else than its row",
    "base_missing": "a tensor needs a base that has no row",
    "base_domain": "a tensor needs a base that it may not refer to",
    "base_cycle": "tensors need each other for decoding",
    "depth_wrong": "a tensor's depth is not one more than its deepest base's",
    "depth_exceeded": "a chain of deltas is longer than the setting allows",
    "pack_missing": "a live pack's object is gone",
    "pack_size": "a pack's object is longer or shorter than its row says",
    "pack_index": "a pack's index is damaged, or disagrees with the frames' rows",
    "pack_hash": "a pack's bytes have changed",
    "copy_missing": "the second copy of a pack is gone",
    "copy_size": "the second copy of a pack is longer or shorter than the pack",
    "copy_hash": "the second copy of a pack has other bytes than the pack",
    "kit_damaged": "the discriminator of an adapter's kit has changed: push the kit again",
    "object_unreadable": "the store did not give an object's bytes, so they were not checked",
    "unknown_object": "an object that no row knows (gc --apply --delete-unknown removes it)",
}


@dataclass(frozen=True)
class Finding:
    """One inconsistency. code: a key of CODES; target: the row or object; text: for operators.

    files: some of the files that need the object, as "'PATH' of NAMESPACE/NAME", of n_files.
    """

    code: str
    target: str
    text: str
    files: tuple[str, ...] = ()
    n_files: int = 0

    def __post_init__(self) -> None:
        if self.code not in CODES:
            raise ValueError(f"{self.code} is no code of a finding")

    @property
    def key(self) -> tuple[str, str, str]:
        """The same for a finding that is met again."""
        return self.code, self.target, self.text

    @property
    def line(self) -> str:
        """The finding as it is printed."""
        if not self.files:
            return f"{self.code}: {self.text}"
        more = self.n_files - len(self.files)
        others = f" and {more} more" if more else ""
        return f"{self.code}: {self.text} (needed by {', '.join(self.files)}{others})"


Findings = Iterator[Finding]


def code_of(error: Exception, code: str) -> str:
    """The code of the finding that an error of reading makes; `code` unless the store is away.

    A store that does not answer says nothing about the bytes.
    """
    return "object_unreadable" if isinstance(error, StoreUnavailable | Unavailable) else code
