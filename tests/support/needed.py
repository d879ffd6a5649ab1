"""What some tests need of the machine besides what `make` installs."""

import os
from typing import NoReturn

import pytest


def lacking(what: str) -> NoReturn:
    """Skip the test for want of something; where CI=true, nothing may be left out: fail."""
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(f"CI must run every test: {what}", pytrace=False)
    pytest.skip(what)
