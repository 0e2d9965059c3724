"""Scans say on the wire that they are scans."""

from __future__ import annotations

import random

import pytest

from ledger_client.data_connection import DataConnection
from ledger_client.health import BookieHealth
from ledger_client.requests import Reads
from runtime.sockets import SocketNetwork
from wire.codec_v2 import RequestFrame, decode_request
from wire.messages import BatchReadRequest, ReadRequest
from wire.types import BookieId, LedgerId


def request_of(entry_ids: range, *, is_scan: bool) -> object:
    connection = DataConnection(
        BookieId("b"),
        locate=lambda _: pytest.fail("nothing is to be connected"),
        network=SocketNetwork(),
        chance=random.Random(1),
        health=BookieHealth(),
    )
    reads = Reads(
        request_id=1,
        sink=lambda _: None,
        ledger_id=LedgerId(7),
        entry_ids=entry_ids,
        bytes_max=1000,
        is_scan=is_scan,
    )
    frame = b"".join(connection._frame(reads))
    size = int.from_bytes(frame[:4], "big")
    decoded = decode_request(frame[4 : 4 + size])
    assert isinstance(decoded, RequestFrame)
    return decoded.request


@pytest.mark.parametrize("is_scan", [False, True])
def test_batch_read_carries_the_class_of_a_scan(is_scan: bool) -> None:
    request = request_of(range(0, 9), is_scan=is_scan)
    assert isinstance(request, BatchReadRequest)
    assert request.read_class_batch is is_scan


@pytest.mark.parametrize("is_scan", [False, True])
def test_single_read_carries_the_class_of_a_scan(is_scan: bool) -> None:
    request = request_of(range(0, 9, 3), is_scan=is_scan)
    assert isinstance(request, ReadRequest)
    assert request.read_class_batch is is_scan
