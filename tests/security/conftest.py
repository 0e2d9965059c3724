"""One authority for all: keys take long to make."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.security.certificates import Authority
from tests.security.guarded_bookie import Guarded, guarded_bookie


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority that nobody trusts."""
    return Authority(tmp_path_factory.mktemp("stranger"))


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Guarded]:
    with guarded_bookie(tmp_path_factory.mktemp("guarded"), authority) as bookie:
        yield bookie
