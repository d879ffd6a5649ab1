"""Numbers of bytes as people read them."""


def human_size(n: int) -> str:
    """Text such as 14.0 MB, in powers of ten."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return f"{n} B"
