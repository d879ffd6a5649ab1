"""Text of sizes for operators."""


def human_size(size_bytes: int) -> str:
    """Text such as 14.0 MB, in powers of ten as in the client."""
    if size_bytes < 1000:
        return f"{size_bytes} B"
    size = float(size_bytes)
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 999.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} TB"
