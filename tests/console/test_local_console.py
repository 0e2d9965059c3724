"""Port and token of a local cluster's console: chosen once, kept, and nobody else's."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from quire.cluster_folder import ClusterFolder, ClusterFolderError
from quire.local_console import _port_and_token, console_link

URL = "http://127.0.0.1:1/"


def test_port_and_token_stay_over_restarts(tmp_path: Path) -> None:
    folder = ClusterFolder(tmp_path)
    assert console_link(folder, URL) == URL
    port, token = _port_and_token(folder, None)
    assert _port_and_token(folder, None) == (port, token)
    assert len(token.reveal()) >= 32
    assert console_link(folder, URL) == f"{URL}#token={token.reveal()}"
    assert stat.S_IMODE((tmp_path / "console.json").stat().st_mode) == 0o600


def test_port_that_is_asked_for_is_kept_instead(tmp_path: Path) -> None:
    folder = ClusterFolder(tmp_path)
    _, token = _port_and_token(folder, None)
    assert _port_and_token(folder, 4567) == (4567, token)
    assert _port_and_token(folder, None) == (4567, token)
    assert stat.S_IMODE(os.stat(tmp_path / "console.json").st_mode) == 0o600


@pytest.mark.parametrize("text", ["", "{", "[]", '{"port": "x", "token": "y"}', '{"port": 1}'])
def test_damaged_file_is_an_error_of_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "console.json").write_text(text)
    with pytest.raises(ClusterFolderError, match=r"console.json cannot be understood .* remove it"):
        _port_and_token(ClusterFolder(tmp_path), None)
