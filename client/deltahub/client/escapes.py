"""Text that comes from a hub, made safe for a terminal."""


def printable(text: str) -> str:
    r"""The text on one line, with each character that is not printed as an escape, such as \x1b.

    These are control characters, line breaks, and characters that turn the direction of writing
    or are not seen: a hub could clear the screen, forge lines or hide a part of a name with them.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
