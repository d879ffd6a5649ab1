"""Names that repositories, branches and files may have: the hub's rules, checked early."""

import re

from deltahub.client.errors import InvalidArgument

MAX_NAME = 96
MAX_BRANCH = 250
MAX_PART_BYTES = 255
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_BRANCH = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/+-]*")
_RESERVED_PARTS = frozenset({".git", ".cache"})
# Includes the separators that some programs read as a new line.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def is_name(name: str) -> bool:
    """Whether a namespace or a repository within one may have this name."""
    is_reserved = name.endswith((".git", ".lock")) or ".." in name
    return len(name) <= MAX_NAME and _NAME.fullmatch(name) is not None and not is_reserved


def is_repository_name(name: str) -> bool:
    """Whether this is `namespace/name`."""
    namespace, slash, short = name.partition("/")
    return bool(slash) and is_name(namespace) and is_name(short)


def is_branch(name: str) -> bool:
    """Whether a branch may have this name."""
    is_reserved = ".." in name or "//" in name or name.endswith(("/", ".", ".lock"))
    is_formed = len(name) <= MAX_BRANCH and _BRANCH.fullmatch(name) is not None
    return is_formed and not is_reserved and _COMMIT.fullmatch(name) is None


def branch_name(name: str) -> str:
    """The name itself. InvalidArgument when no branch can have it."""
    if not is_branch(name):
        raise InvalidArgument(
            f"{name!r} is not the name of a branch: letters, digits and ._-+/, beginning with a "
            "letter or digit, without .. or //, and no commit"
        )
    return name


def file_path(path: str) -> str:
    """The path itself. InvalidArgument when no file of a repository can have it."""
    problem = path_problem(path)
    if problem is not None:
        raise InvalidArgument(f"{path!r} cannot be the path of a file in a repository: {problem}")
    return path


def path_problem(path: str) -> str | None:
    """Why a file cannot have this path, or None. The hub checks the path's length."""
    try:
        part_bytes = [len(part.encode()) for part in path.split("/")]
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    parts = path.split("/")
    checks = (
        (path.startswith("/"), "it begins with a slash"),
        ("\\" in path, "it holds a backslash; folders are separated by /"),
        (_CONTROL.search(path) is not None, "it holds a control character"),
        ("" in parts, "it holds an empty part"),
        ("." in parts or ".." in parts, "it holds the part . or .."),
        (max(part_bytes) > MAX_PART_BYTES, f"a part has more than {MAX_PART_BYTES} bytes"),
        (
            any(part.lower() in _RESERVED_PARTS for part in parts),
            "it holds the part .git or .cache, which clients keep for themselves",
        ),
    )
    return next((problem for is_wrong, problem in checks if is_wrong), None)


def repository_path(name: str) -> str:
    """The URL path of `namespace/name`. InvalidArgument when it is not of that form."""
    if not is_repository_name(name):
        raise InvalidArgument(
            f"{name!r} is not the name of a repository: use NAMESPACE/NAME, each of letters, "
            "digits, dots, dashes and underscores"
        )
    return f"/v1/repositories/{name}"


def namespace_name(name: str) -> str:
    """The name itself. InvalidArgument when no namespace can have it."""
    if not is_name(name):
        raise InvalidArgument(
            f"{name!r} is not the name of a namespace: letters, digits, dots, dashes and "
            "underscores, beginning with a letter or digit"
        )
    return name
