"""Valid names and paths, and the mode (regular or lfs) of an entry."""

import re
from collections.abc import Iterable
from typing import Literal

from deltahub.codecs.files.paths import MAX_PATH_BYTES, path_problem, tree_problem
from deltahub.registry.errors import InvalidName, InvalidPath, InvalidRequest

Mode = Literal["regular", "lfs"]

MAX_NAME = 96
MAX_REF = 250
# Files of at least this size are LFS whatever their name: 10 MiB, as on the Hugging Face hub.
LFS_BYTES = 10 << 20

# The default .gitattributes of the Hugging Face hub, because clients expect its kind of ETag for
# each file; and .gguf, which the upload rules of that hub treat as LFS too.
_LFS_SUFFIXES = tuple(
    ".7z .arrow .bin .bz2 .ckpt .ftz .gguf .gz .h5 .joblib .mlmodel .model .msgpack .npy .npz .onnx"
    " .ot .parquet .pb .pickle .pkl .pt .pth .rar .safetensors .tar .tflite .tgz .wasm .xz .zip"
    " .zst".split()
)
_LFS_INFIXES = (".lfs.", ".tar.")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_REF = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/+-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
# First path parts of URLs of this hub and of other hubs. A namespace must not shadow them.
RESERVED_NAMESPACES = frozenset(
    "api assets blog cas collections dashboard datasets docs docs-assets healthz inference join lfs"
    " login logout metrics models new oauth openapi.json organizations papers pricing readyz search"
    " settings spaces static tasks v1 v2".split()
)


def entry_mode(path: str, size: int) -> Mode:
    """The mode of an entry, fixed at commit. It makes the git id or the SHA-256 the ETag."""
    if size == 0:
        return "regular"  # clients send an empty file within the commit
    name = path.rpartition("/")[2]
    is_lfs = (
        size >= LFS_BYTES
        or name.endswith(_LFS_SUFFIXES)
        or any(infix in name for infix in _LFS_INFIXES)
        or "tfevents" in name
        or path.startswith("saved_model/")
    )
    return "lfs" if is_lfs else "regular"


def git_attributes() -> bytes:
    """A .gitattributes with the LFS rules of entry_mode(), except the rule for large files."""
    patterns = [f"*{suffix}" for suffix in _LFS_SUFFIXES]
    patterns += [f"*{infix}*" for infix in _LFS_INFIXES] + ["*tfevents*", "saved_model/**/*"]
    return "".join(f"{each} filter=lfs diff=lfs merge=lfs -text\n" for each in patterns).encode()


def validate_path(path: str, max_bytes: int = MAX_PATH_BYTES) -> str:
    """The path itself; InvalidPath if a pull could not write it safely on every file system."""
    problem = path_problem(path, max_bytes)
    if problem is not None:
        raise InvalidPath(f"the path {quoted(path)} {problem}")
    return path


def validate_tree(paths: Iterable[str]) -> None:
    """InvalidPath if one path is both a file and a folder, or git would take a folder for its own.

    Paths that differ only by case or by Unicode spelling are allowed, because most file systems
    of servers keep them apart. A pull refuses them where they would become one file.
    """
    problem = tree_problem(paths)
    if problem is not None:
        raise InvalidPath(problem)


def is_name(name: str) -> bool:
    """Whether this may be a name. A database cannot even be asked for some other texts."""
    is_reserved = name.endswith((".git", ".lock")) or ".." in name
    return len(name) <= MAX_NAME and _NAME.fullmatch(name) is not None and not is_reserved


def validate_name(name: str, what: str) -> str:
    """The name itself; InvalidName. what: the kind of thing named, for the message."""
    if not is_name(name):
        raise InvalidName(
            f"{quoted(name)} cannot be the name of a {what}: 1 to {MAX_NAME} letters, digits, dots,"
            " dashes and underscores, beginning with a letter or digit, without .. and"
            " not ending in .git or .lock"
        )
    return name


def split_name(full_name: str) -> tuple[str, str]:
    """(namespace, name) of `namespace/name`; InvalidName."""
    namespace, slash, name = full_name.partition("/")
    if not slash:
        raise InvalidName(f"{quoted(full_name)} is no repository: write it as namespace/name")
    return validate_name(namespace, "namespace"), validate_name(name, "repository")


def validate_ref(name: str) -> str:
    """The name of a branch or tag itself; InvalidName."""
    is_wrong = (
        len(name) > MAX_REF
        or not _REF.fullmatch(name)
        or ".." in name
        or "//" in name
        or name.endswith(("/", ".", ".lock"))
        or _COMMIT.fullmatch(name) is not None
        # Readers of these names get the default branch, or the branch or tag named behind refs/.
        or name == "HEAD"
        or name.startswith("refs/")
        or path_problem(name) is not None  # clients keep a file of this name
    )
    if is_wrong:
        raise InvalidName(
            f"{quoted(name)} cannot name a branch or tag: 1 to {MAX_REF} letters, digits and"
            " ._-+/, without .. or //, not a commit id, not HEAD, not beginning with refs/, and a"
            " valid path of a file"
        )
    return name


def validate_sha256(sha256: str) -> str:
    """The SHA-256 itself; InvalidRequest unless it is 64 lower-case hex digits."""
    if not _SHA256.fullmatch(sha256):
        raise InvalidRequest(f"{quoted(sha256)} is no SHA-256: 64 lower-case hex digits")
    return sha256


def validate_commit_id(commit: str) -> str:
    """The commit id itself; InvalidRequest unless it is 40 lower-case hex digits."""
    if not _COMMIT.fullmatch(commit):
        raise InvalidRequest(f"{quoted(commit)} is no commit id: 40 lower-case hex digits")
    return commit


def quoted(text: str, limit: int = 100) -> str:
    """Untrusted text for a message: escaped, and truncated to `limit` characters."""
    return repr(text) if len(text) <= limit else f"{text[:limit]!r}... ({len(text)} long)"
