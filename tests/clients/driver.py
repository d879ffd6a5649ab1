"""Runs one script in a client's environment: python driver.py SCRIPT GIVEN ANSWER

GIVEN: JSON, the names that the script begins with. ANSWER: a file for what the script left in
`result`, or for the error that ended it. Only the standard library: it runs in every environment.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path


def described(error: Exception) -> dict[str, object]:
    """An error as JSON: its class and those above, the nearest first, and its text."""
    return {"kinds": [kind.__name__ for kind in type(error).__mro__], "text": str(error)}


def caught(call: Callable[[], object]) -> dict[str, object] | None:
    """The error of a call, None if there was none. Scripts have this function."""
    try:
        call()
    except Exception as error:
        return described(error)
    return None


def main(script: str, given: str, answer: str) -> None:
    names = {"__name__": "__main__", "__file__": script, "caught": caught, **json.loads(given)}
    try:
        exec(compile(Path(script).read_text(), script, "exec"), names)
    except Exception as error:
        Path(answer).write_text(json.dumps(described(error)))
        raise
    Path(answer).write_text(json.dumps({"result": names.get("result")}, default=str))


if __name__ == "__main__":
    main(*sys.argv[1:])
