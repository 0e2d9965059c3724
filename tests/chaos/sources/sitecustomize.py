"""What children of a chaos run need changed in Python itself, before anything else is loaded.

With QUIRE_CHAOS_SOURCE every connection comes from that address, so that proxies know who calls.
Under libfaketime, whose clock_nanosleep takes times of the monotonic clock for wall time, a sleep
is a select.
"""

from __future__ import annotations

import os
import select
import socket
import time
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


def _sleep(seconds: float) -> None:
    select.select([], [], [], seconds)


if "FAKETIME_TIMESTAMP_FILE" in os.environ:
    time.sleep = _sleep  # type: ignore[assignment]
if _source is not None:
    socket.socket.connect = _connect_from  # type: ignore[method-assign, assignment]
    socket.socket.connect_ex = _connect_ex_from  # type: ignore[method-assign, assignment]
