"""What a test needs of the machine. Under CI nothing may be absent, so a green run means it ran."""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest


def absent(what: str, remedy: str) -> NoReturn:
    """End this test: skipped with the reason (`-ra` prints it), or failed where CI=true."""
    message = f"{what} is absent: {remedy}"
    if os.environ.get("CI") == "true":
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


def program(name: str, remedy: str) -> str:
    """The path of a program that this test runs."""
    return shutil.which(name) or absent(name, remedy)
