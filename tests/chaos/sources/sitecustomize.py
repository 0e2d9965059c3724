"""Every connection of this process comes from the address in QUIRE_CHAOS_SOURCE."""

from __future__ import annotations

import os
import socket
from typing import Any

_source = os.environ.get("QUIRE_CHAOS_SOURCE")
_connect, _connect_ex = socket.socket.connect, socket.socket.connect_ex


def _bind(connecting: socket.socket, address: Any) -> None:
    is_ours = connecting.family == socket.AF_INET and connecting.type & socket.SOCK_STREAM
    if is_ours and address[0].startswith("127.") and connecting.getsockname()[1] == 0:
        connecting.bind((_source, 0))


def _connect_from(self: socket.socket, address: Any) -> None:
    _bind(self, address)
    _connect(self, address)


def _connect_ex_from(self: socket.socket, address: Any) -> int:
    _bind(self, address)
    return _connect_ex(self, address)


if _source is not None:
    socket.socket.connect = _connect_from  # type: ignore[method-assign, assignment]
    socket.socket.connect_ex = _connect_ex_from  # type: ignore[method-assign, assignment]
