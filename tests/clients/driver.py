"""Runs one script in a client's environment: python driver.py SCRIPT GIVEN ANSWER

GIVEN: JSON, the names that the script begins with. ANSWER: a file for what the script left in
`result`, or for the error that ended it. Only the standard library: it runs in every environment.
"""

import json
import sys
from pathlib import Path


def main(script: str, given: str, answer: str) -> None:
    names = {"__name__": "__main__", "__file__": script, **json.loads(given)}
    try:
        exec(compile(Path(script).read_text(), script, "exec"), names)
    except Exception as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        Path(answer).write_text(json.dumps({"kinds": kinds, "text": str(error)}))
        raise
    Path(answer).write_text(json.dumps({"result": names.get("result")}, default=str))


if __name__ == "__main__":
    main(*sys.argv[1:])
