"""Sizes as operators read them."""


def human_size(size_bytes: int) -> str:
    """14.0 MB: powers of ten, as the client counts."""
    if size_bytes < 1000:
        return f"{size_bytes} B"
    size = float(size_bytes)
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 999.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} TB"
