"""The v3 codec against frames recorded from Java peers, and against itself."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.v3_samples import (
    REQUESTS,
    RESPONSES,
    TRANSACTION_IDS,
    payload_of,
    recorded,
    steady,
    v3_frames,
)
from wire import bookkeeper_pb2 as pb
from wire import messages
from wire.codec_v3 import (
    Header,
    NotV3Error,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    refusal,
)
from wire.errors import STATUS_BY_V3, ProtocolError, Status
from wire.messages import Request, Response
from wire.types import LedgerId, Operation

FRAMES = v3_frames()
BY_NAME = [pytest.param(frame, id=frame["name"]) for frame in FRAMES]


def expected_request(fields: dict[str, Any]) -> Request:
    """The request that the recorder's own decoding describes."""
    take = fields.get
    key, body = (
        None if take(name) is None else bytes.fromhex(take(name) or "")
        for name in ("master_key_hex", "body_hex")
    )
    ledger_id = LedgerId(take("ledger_id", 0))
    match Operation(fields["operation_number"]):
        case Operation.ADD_ENTRY:
            assert key is not None
            assert body is not None
            return messages.AddRequest(
                ledger_id=ledger_id,
                entry_id=fields["entry_id"],
                master_key=key,
                body=body,
                recovery=take("flag") == "RECOVERY_ADD",
                high_priority=take("priority", 0) > 0,
                deferred_sync=take("write_flags", 0) == 1,
            )
        case Operation.READ_ENTRY:
            return messages.ReadRequest(
                ledger_id=ledger_id,
                entry_id=fields["entry_id"],
                master_key=key,
                fence=take("flag") == "FENCE_LEDGER",
                piggyback=take("flag") == "ENTRY_PIGGYBACK",
                high_priority=take("priority", 0) > 0,
                previous_lac=take("previous_lac"),
                timeout_ms=take("time_out"),
            )
        case Operation.WRITE_LAC:
            assert key is not None
            assert body is not None
            return messages.WriteLacRequest(
                ledger_id=ledger_id, lac=fields["lac"], master_key=key, body=body
            )
        case Operation.READ_LAC:
            return messages.ReadLacRequest(ledger_id=ledger_id)
        case Operation.FORCE_LEDGER:
            return messages.ForceRequest(ledger_id=ledger_id)
        case Operation.GET_BOOKIE_INFO:
            return messages.BookieInfoRequest(requested=take("requested"))
        case Operation.GET_LIST_OF_ENTRIES_OF_LEDGER:
            return messages.ListEntriesRequest(ledger_id=ledger_id)
        case Operation.AUTH:
            return messages.AuthRequest(
                plugin=fields["auth_plugin_name"], payload=bytes.fromhex(fields["auth_payload_hex"])
            )
        case Operation.START_TLS:
            return messages.StartTlsRequest()
    raise AssertionError(f"no request of this kind was recorded: {fields}")


def expected_response(fields: dict[str, Any]) -> Response:
    take = fields.get
    operation = Operation(fields["operation_number"])
    status = STATUS_BY_V3[fields["status_code"]]
    if fields["sub_message"] is None:
        return messages.BareResponse(operation=operation, status=status)
    assert take("inner_status", fields["status"]) == fields["status"]
    ledger_id = LedgerId(take("ledger_id", 0))

    def blob(name: str) -> bytes | None:
        return None if take(name) is None else bytes.fromhex(fields[name])

    match operation:
        case Operation.ADD_ENTRY:
            return messages.AddResponse(
                status=status, ledger_id=ledger_id, entry_id=fields["entry_id"]
            )
        case Operation.READ_ENTRY:
            return messages.ReadResponse(
                status=status,
                ledger_id=ledger_id,
                entry_id=fields["entry_id"],
                body=blob("body_hex"),
                max_lac=take("max_lac"),
                lac_update_ms=take("lac_update_timestamp"),
            )
        case Operation.WRITE_LAC:
            return messages.WriteLacResponse(status=status, ledger_id=ledger_id)
        case Operation.READ_LAC:
            return messages.ReadLacResponse(
                status=status,
                ledger_id=ledger_id,
                lac_body=blob("lac_body_hex"),
                last_entry_body=blob("last_entry_body_hex"),
            )
        case Operation.FORCE_LEDGER:
            return messages.ForceResponse(status=status, ledger_id=ledger_id)
        case Operation.GET_BOOKIE_INFO:
            return messages.BookieInfoResponse(
                status=status,
                total_bytes=take("total_disk_capacity"),
                free_bytes=take("free_disk_space"),
            )
        case Operation.GET_LIST_OF_ENTRIES_OF_LEDGER:
            return messages.ListEntriesResponse(
                status=status, ledger_id=ledger_id, availability=blob("availability_hex")
            )
        case Operation.AUTH:
            return messages.AuthResponse(
                plugin=fields["auth_plugin_name"],
                payload=bytes.fromhex(fields["auth_payload_hex"]),
                status=status,
            )
        case Operation.START_TLS:
            return messages.StartTlsResponse(status=status)
    raise AssertionError(f"no response of this kind was recorded: {fields}")


@pytest.mark.parametrize("frame", BY_NAME)
def test_recorded_frame_decodes_to_its_fields(frame: dict[str, Any]) -> None:
    fields = frame["fields"]
    header = Header(
        transaction_id=fields["txn_id"],
        operation=Operation(fields["operation_number"]),
        version=fields["protocol_version"],
        priority=fields.get("priority", 0),
    )
    if frame["direction"] == "request":
        assert decode_request(payload_of(frame)) == (header, expected_request(fields))
    else:
        assert decode_response(payload_of(frame)) == (header, expected_response(fields))


def encoded_again(frame: dict[str, Any]) -> bytes:
    fields = frame["fields"]
    if frame["direction"] == "request":
        return encode_request(expected_request(fields), transaction_id=fields["txn_id"])
    return encode_response(
        expected_response(fields),
        transaction_id=fields["txn_id"],
        priority=fields.get("priority", 0),
    )


def writes_flag_last(frame: dict[str, Any]) -> bool:
    order = frame["fields"].get("field_order", [])
    return len(order) > 1 and order[-1] == 100


@pytest.mark.parametrize("frame", BY_NAME)
def test_recorded_frame_encodes_to_the_same_bytes(frame: dict[str, Any]) -> None:
    """Byte for byte as 4.18; what 4.17 writes in another order must at least mean the same."""
    ours = encoded_again(frame)
    if writes_flag_last(frame):
        assert decode_request(ours[4:]) == decode_request(payload_of(frame))
        assert sorted(ours) == sorted(bytes.fromhex(frame["frame_hex"]))
    else:
        assert ours.hex() == frame["frame_hex"]


def test_only_the_old_client_puts_the_flag_last() -> None:
    exempt = [frame for frame in FRAMES if writes_flag_last(frame)]
    assert 0 < len(exempt) < len(FRAMES) / 50
    assert {frame["client"] for frame in exempt} == {"4.17.3"}


@pytest.mark.parametrize("kind", REQUESTS)
@steady
@given(data=st.data(), transaction_id=TRANSACTION_IDS)
def test_every_request_survives_the_round_trip(
    kind: str, data: st.DataObject, transaction_id: int
) -> None:
    request = data.draw(REQUESTS[kind])
    frame = encode_request(request, transaction_id=transaction_id)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    header, decoded = decode_request(memoryview(frame)[4:])
    assert decoded == request
    assert header.transaction_id == transaction_id
    assert header.version == 3
    assert header.priority == (100 if getattr(request, "high_priority", False) else 0)


@pytest.mark.parametrize("kind", RESPONSES)
@steady
@given(data=st.data(), transaction_id=TRANSACTION_IDS)
def test_every_response_survives_the_round_trip(
    kind: str, data: st.DataObject, transaction_id: int
) -> None:
    response = data.draw(RESPONSES[kind])
    frame = encode_response(response, transaction_id=transaction_id)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    header, decoded = decode_response(memoryview(frame)[4:])
    assert decoded == response
    assert (header.transaction_id, header.version) == (transaction_id, 3)


def test_body_of_a_request_may_be_a_view() -> None:
    add = messages.AddRequest(
        ledger_id=LedgerId(1), entry_id=2, master_key=b"k" * 20, body=memoryview(b"abc")
    )
    assert decode_request(encode_request(add, transaction_id=1)[4:])[1].body == b"abc"  # type: ignore[union-attr]


# ---------------------------------------------------------------- what Java bookies were asked


def probe(name: str) -> dict[str, Any]:
    (found,) = [item for item in recorded("probes.json") if item["name"] == name]
    return found


def decode_probe(name: str) -> tuple[Header, Request]:
    return decode_request(bytes.fromhex(probe(name)["sent_hex"][0])[4:])


@pytest.mark.parametrize(
    "name",
    [
        "mode.v3_malformed_then_v3",
        "v3.header_empty",
        "v3.header_missing",
        "v3.header.version_missing",
        "v3.header.operation_missing",
        "v3.header.txnid_missing",
        "v3.header.version_4",
        "v3.operation_0",
        "v3.operation_13",
        "v3.operation_99",
        "v3.add.submessage_empty",
        "v3.add.key_missing",
        "v3.read.ledger_missing",
        "v3.read.entry_missing",
        "v3.auth.payload_missing",
        "v3.request_context_missing_value",
        "v3.trailing_garbage",
        "v3.length_delimited_overrun",
    ],
)
def test_incomplete_request_is_not_v3(name: str) -> None:
    assert probe(name)["outcome"]["connection"] == "closed"
    with pytest.raises(NotV3Error):
        decode_probe(name)


@pytest.mark.parametrize("version", [1, 2])
def test_old_version_keeps_its_request_so_that_it_can_be_refused(version: int) -> None:
    header, request = decode_probe(f"v3.header.version_{version}")
    assert header.version == version
    answer = encode_response(refusal(request, Status.BAD_VERSION), transaction_id=5)
    assert answer.hex() == probe(f"v3.header.version_{version}")["outcome"]["responses_hex"][0]


@pytest.mark.parametrize("operation", [3, 4, 12])
def test_operation_without_message_is_refused_bare(operation: int) -> None:
    _, request = decode_probe(f"v3.operation_{operation}")
    assert request == messages.BareRequest(operation=Operation(operation))
    answer = encode_response(refusal(request, Status.BAD_REQUEST), transaction_id=5)
    assert answer.hex() == probe(f"v3.operation_{operation}")["outcome"]["responses_hex"][0]


def test_bare_answer_repeats_the_priority_as_java_does() -> None:
    name = "v3.operation_12.priority"
    header, request = decode_probe(name)
    answer = encode_response(
        refusal(request, Status.BAD_REQUEST),
        transaction_id=header.transaction_id,
        priority=header.priority,
    )
    assert answer.hex() == probe(name)["outcome"]["responses_hex"][0]


def test_auth_answer_repeats_the_priority_as_java_does() -> None:
    name = "v3.auth.priority"
    header, _ = decode_probe(name)
    answer = encode_response(
        messages.AuthResponse(plugin="AuthDisabledPlugin", payload=b""),
        transaction_id=header.transaction_id,
        priority=header.priority,
    )
    assert answer.hex() == probe(name)["outcome"]["responses_hex"][0]


def test_answers_of_other_operations_drop_the_priority() -> None:
    answer = messages.ForceResponse(status=Status.OK, ledger_id=LedgerId(7))
    plain = encode_response(answer, transaction_id=5)
    assert encode_response(answer, transaction_id=5, priority=100) == plain


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("v3.read.submessage_missing", Operation.READ_ENTRY),
        ("v3.add.submessage_missing", Operation.ADD_ENTRY),
        ("v3.write_lac.submessage_missing", Operation.WRITE_LAC),
        ("v3.read_lac.submessage_missing", Operation.READ_LAC),
        ("v3.force.submessage_missing", Operation.FORCE_LEDGER),
        ("v3.list.submessage_missing", Operation.GET_LIST_OF_ENTRIES_OF_LEDGER),
        ("v3.operation_mismatch_add_with_read", Operation.ADD_ENTRY),
    ],
)
def test_request_without_its_message_is_bare(name: str, operation: Operation) -> None:
    assert decode_probe(name)[1] == messages.BareRequest(operation=operation)


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        ("v3.info.submessage_missing", messages.BookieInfoRequest()),
        ("v3.auth.submessage_missing", messages.AuthRequest(plugin="", payload=b"")),
        ("v3.start_tls.submessage_missing", messages.StartTlsRequest()),
    ],
)
def test_some_requests_need_no_message(name: str, request_: Request) -> None:
    assert decode_probe(name)[1] == request_


@pytest.mark.parametrize(
    "name",
    [
        "v3.unknown_top_field",
        "v3.unknown_nested_field",
        "v3.request_context",
        "v3.fields_reversed",
    ],
)
def test_unknown_fields_and_context_are_skipped(name: str) -> None:
    header, request = decode_probe(name)
    assert header == Header(transaction_id=5, operation=Operation.READ_LAC)
    assert request == messages.ReadLacRequest(ledger_id=LedgerId(1191182732))


def test_unknown_flag_counts_as_none() -> None:
    for name in ("v3.add.flag_unknown_9", "v3.add.flag_unknown_9_first"):
        add = decode_probe(name)[1]
        assert isinstance(add, messages.AddRequest)
        assert not add.recovery
    read = decode_probe("v3.read.flag_unknown_9")[1]
    assert isinstance(read, messages.ReadRequest)
    assert not read.fence
    assert not read.piggyback


def test_unknown_write_flags_are_ignored() -> None:
    add = decode_probe("v3.add.write_flags_0x80")[1]
    assert isinstance(add, messages.AddRequest)
    assert not add.deferred_sync
    assert decode_probe("v3.add.deferred_sync")[1].deferred_sync  # type: ignore[union-attr]


def test_transaction_id_is_unsigned() -> None:
    assert decode_probe("v3.txnid_max")[0].transaction_id == 2**64 - 1
    assert decode_probe("v3.priority_max")[0].priority == 2**32 - 1


def test_plugin_name_that_is_no_text_stays_readable() -> None:
    _, request = decode_request(bytes.fromhex("0a06080310051805b206060a01ff120174"))
    assert request == messages.AuthRequest(plugin="\ufffd", payload=b"t")


# ---------------------------------------------------------------- odd answers


def response(status: int, **inner: object) -> bytes:
    message = pb.Response(**inner)  # type: ignore[arg-type]
    message.header.version = pb.VERSION_THREE
    message.header.operation = pb.ADD_ENTRY
    message.header.txnId = 9
    message.status = status  # type: ignore[assignment]
    return message.SerializeToString()


def test_inner_status_counts_when_the_outer_one_is_ok() -> None:
    inner = pb.AddResponse(status=pb.EFENCED, ledgerId=1, entryId=2)
    _, answer = decode_response(response(0, addResponse=inner))
    assert answer == messages.AddResponse(status=Status.FENCED, ledger_id=LedgerId(1), entry_id=2)


def test_outer_status_counts_when_it_is_an_error() -> None:
    inner = pb.AddResponse(status=pb.EOK, ledgerId=1, entryId=2)
    _, answer = decode_response(response(pb.EIO, addResponse=inner))
    assert answer.status is Status.IO_ERROR


def test_ok_without_message_is_no_success() -> None:
    with pytest.raises(ProtocolError, match="ADD_ENTRY says OK but lacks its message"):
        decode_response(response(0))
    other = pb.ReadResponse(status=pb.EOK, ledgerId=1, entryId=2)
    with pytest.raises(ProtocolError):
        decode_response(response(0, readResponse=other))


def test_error_without_message_is_bare() -> None:
    _, answer = decode_response(response(pb.EUA))
    assert answer == messages.BareResponse(
        operation=Operation.ADD_ENTRY, status=Status.UNAUTHORIZED
    )


def test_bare_ok_is_enough_for_start_tls() -> None:
    assert decode_response(bytes.fromhex("0a060803100918041000"))[1] == messages.StartTlsResponse(
        status=Status.OK
    )


@pytest.mark.parametrize(
    "answer",
    [
        "0a0608031002180110e707aa0606080010001800",  # outer status 999
        "0a060803100218011000aa060708e70710001800",  # inner status 999
        "0a060803100218011000aa060408001000",  # no entry id
        "0a06080310021801aa0606080010001800",  # no outer status
        "0a060803100d18011000",  # operation 13
        "0a06080310031801100000ff",  # bytes behind the last field
    ],
)
def test_incomplete_answer_is_refused(answer: str) -> None:
    with pytest.raises(ProtocolError):
        decode_response(bytes.fromhex(answer))


def test_refusals_repeat_the_ids() -> None:
    read = messages.ReadRequest(ledger_id=LedgerId(3), entry_id=-1)
    assert refusal(read, Status.NO_ENTRY) == messages.ReadResponse(
        status=Status.NO_ENTRY, ledger_id=LedgerId(3), entry_id=-1
    )
    assert refusal(messages.BookieInfoRequest(), Status.BAD_VERSION) == messages.BookieInfoResponse(
        status=Status.BAD_VERSION
    )
    assert refusal(messages.StartTlsRequest(), Status.BAD_REQUEST) == messages.BareResponse(
        operation=Operation.START_TLS, status=Status.BAD_REQUEST
    )
    force = messages.ForceRequest(ledger_id=LedgerId(4))
    assert refusal(force, Status.TOO_MANY_REQUESTS) == messages.ForceResponse(
        status=Status.TOO_MANY_REQUESTS, ledger_id=LedgerId(4)
    )
