"""Which paths a file of a repository may have: one rule for the hub and its clients.

docs/paths.md explains the rule to users. The hub asks it before a commit, because others will
pull the path. The client asks it before a pull, because it trusts no hub.
"""

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator
from typing import Final

MAX_PATH_BYTES: Final = 1024
MAX_PART_BYTES: Final = 255

# Folders of version control, whose settings name programs that a later command runs, and the
# folder that clients keep for themselves.
RESERVED_PARTS: Final = (".git", ".hg", ".svn", ".bzr", ".jj", ".cache")

# Includes the separators that some programs read as a new line.
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_BIDI: Final = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_INVISIBLE: Final = (
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180e\u200b\u2060-\u2065\u206a-\u206f\u3164\ufeff\uffa0"
    "\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e00ff"
    "\U000e01f0-\U000e0fff"
)
# Joiners and variation selectors: Persian, Mongolian, Japanese and emoji are written with them.
_JOINERS: Final = "\u180b-\u180d\u180f\u200c\u200d\ufe00-\ufe0f\U000e0100-\U000e01ef"
_UNSEEN: Final = re.compile(f"[{_BIDI}{_INVISIBLE}]")
_IGNORABLE: Final = re.compile(f"[{_BIDI}{_INVISIBLE}{_JOINERS}]")
_ILLEGAL_ON_NTFS: Final = re.compile(r'[<>:"|?*]')
_DEVICE: Final = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9]|conin\$|conout\$) *(\..*)?")
# Names of 8 and 3 letters that NTFS makes of the reserved names, such as git~1 or gi7eba~1.
_SHORT_NAME: Final = re.compile(
    "|".join(rf"{part[1:]}~[0-9]+|{part[1:3]}[0-9a-f]{{4}}~[0-9]+" for part in RESERVED_PARTS)
)


def path_problem(path: str, max_bytes: int = MAX_PATH_BYTES) -> str | None:
    """Why no file of a repository can have this path, as the end of a sentence; None if one can."""
    try:
        n_bytes = len(path.encode())
    except UnicodeEncodeError:
        return "is not valid Unicode"
    if not path:
        return "is empty"
    if n_bytes > max_bytes:
        return f"has {n_bytes} bytes; the limit is {max_bytes}"
    if path.startswith("/"):
        return "begins with a slash; paths are relative to the repository"
    if "\\" in path:
        return "holds a backslash; folders are separated by /"
    if _CONTROL.search(path):
        return "holds a control character"
    if not path.isascii() and _UNSEEN.search(path):
        return "holds an invisible character, or one that turns the direction of writing"
    return next((problem for problem in map(_part_problem, path.split("/")) if problem), None)


def _part_problem(part: str) -> str | None:
    """Why this cannot be the name of a file or folder, or None."""
    if not part:
        return "holds an empty part (// or a slash at the end)"
    if part in (".", ".."):
        return "holds the part . or .."
    if len(part.encode()) > MAX_PART_BYTES:
        return f"holds a part of more than {MAX_PART_BYTES} bytes"
    # As the file systems of Windows and macOS compare names.
    name = folded(part).rstrip(" .")
    if name in RESERVED_PARTS or _SHORT_NAME.fullmatch(name):
        reserved = ", ".join(RESERVED_PARTS)
        return (
            f"holds {part!a}, which some file systems take for one of {reserved}; these names"
            " belong to version control and to clients"
        )
    illegal = _ILLEGAL_ON_NTFS.search(part)
    if illegal:
        return f"holds {illegal[0]}, which Windows allows in no name"
    if part.endswith((" ", ".")):
        return "holds a part that ends with a dot or a space, which Windows drops"
    if _DEVICE.fullmatch(name):
        return f"holds {part!a}, which is a device on Windows"
    return None


def folded(path: str) -> str:
    """Equal for two paths that some file system may take for one.

    Such a file system ignores case, kinds of Unicode spelling, or characters that are not seen.
    """
    if path.isascii():
        return path.lower()
    seen = _IGNORABLE.sub("", path)
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", seen).casefold())


def tree_problem(paths: Iterable[str]) -> str | None:
    """Why these cannot be the paths of one revision, as a sentence; None if they can."""
    files = set(paths)
    for path in files:
        for folder in _folders(path):
            if folder in files:
                return f"{_shown(folder)} would be both a file and the folder of {_shown(path)}"
    head = git_head(files)
    if head is not None:
        return (
            f"{_shown(head)} and the files beside it look like a git repository, and git would run"
            " the programs that its config names: rename the file"
        )
    return None


def git_head(files: Collection[str]) -> str | None:
    """The HEAD of a folder that git takes for a repository although it is not named .git.

    git does so for a folder with HEAD, objects/ and refs/, or with HEAD and commondir.
    """
    heads = [path for path in files if folded(path.rpartition("/")[2]) == "head"]
    if not heads:
        return None
    names = {folded(path) for path in files}
    folders = {folder for name in names for folder in _folders(name)}
    for head in heads:
        at = folded(head).removesuffix("head")
        is_whole = f"{at}objects" in folders and f"{at}refs" in folders
        if is_whole or f"{at}commondir" in names:
            return head
    return None


def twins(paths: Iterable[str]) -> list[tuple[str, str]]:
    """Pairs of different paths of one revision that some file system may take for one.

    Either two files, or a file and a path below a folder of its name.
    """
    by_key: dict[str, str] = {}
    below: dict[str, str] = {}
    pairs = []
    for path in sorted(set(paths)):
        key = folded(path)
        if key in by_key:
            pairs.append((by_key[key], path))
        by_key.setdefault(key, path)
        below.update(dict.fromkeys(_folders(key), path))
    return pairs + [(by_key[key], path) for key, path in below.items() if key in by_key]


def _folders(path: str) -> Iterator[str]:
    """The folders above a path, from the outermost to its own."""
    end = path.find("/")
    while end >= 0:
        yield path[:end]
        end = path.find("/", end + 1)


def _shown(path: str) -> str:
    return repr(path) if len(path) <= 100 else f"{path[:100]!r}..."
