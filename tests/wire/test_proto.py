"""The generated messages: made from the .proto beside them, and numbered like Apache's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from wire import bookkeeper_pb2 as pb

ROOT = Path(__file__).parent.parent.parent

#: number name type label, as the protocol has them. `status` is a StatusCode, `flag` an own enum.
MESSAGES = {
    "BKPacketHeader": "1 version enum req; 2 operation enum req; 3 txnId uint64 req;"
    " 4 priority uint32 opt",
    "ContextPair": "1 key string req; 2 value string req",
    "Request": "1 header message req; 100 readRequest message opt; 101 addRequest message opt;"
    " 102 authRequest message opt; 103 writeLacRequest message opt; 104 readLacRequest message opt;"
    " 105 getBookieInfoRequest message opt; 106 startTLSRequest message opt;"
    " 107 forceLedgerRequest message opt; 108 getListOfEntriesOfLedgerRequest message opt;"
    " 200 requestContext message rep",
    "Response": "1 header message req; 2 status enum req; 100 readResponse message opt;"
    " 101 addResponse message opt; 102 authResponse message opt; 103 writeLacResponse message opt;"
    " 104 readLacResponse message opt; 105 getBookieInfoResponse message opt;"
    " 106 startTLSResponse message opt; 107 forceLedgerResponse message opt;"
    " 108 getListOfEntriesOfLedgerResponse message opt",
    "ReadRequest": "1 ledgerId int64 req; 2 entryId int64 req; 3 masterKey bytes opt;"
    " 4 previousLAC int64 opt; 5 timeOut int64 opt; 100 flag enum opt",
    "ReadResponse": "1 status enum req; 2 ledgerId int64 req; 3 entryId int64 req;"
    " 4 body bytes opt; 5 maxLAC int64 opt; 6 lacUpdateTimestamp int64 opt",
    "AddRequest": "1 ledgerId int64 req; 2 entryId int64 req; 3 masterKey bytes req;"
    " 4 body bytes req; 5 writeFlags int32 opt; 100 flag enum opt",
    "AddResponse": "1 status enum req; 2 ledgerId int64 req; 3 entryId int64 req",
    "AuthMessage": "1 authPluginName string req; 2 payload bytes req",
    "WriteLacRequest": "1 ledgerId int64 req; 2 lac int64 req; 3 masterKey bytes req;"
    " 4 body bytes req",
    "WriteLacResponse": "1 status enum req; 2 ledgerId int64 req",
    "ForceLedgerRequest": "1 ledgerId int64 req",
    "ForceLedgerResponse": "1 status enum req; 2 ledgerId int64 req",
    "ReadLacRequest": "1 ledgerId int64 req",
    "ReadLacResponse": "1 status enum req; 2 ledgerId int64 req; 3 lacBody bytes opt;"
    " 4 lastEntryBody bytes opt",
    "GetBookieInfoRequest": "1 requested int64 opt",
    "GetBookieInfoResponse": "1 status enum req; 2 totalDiskCapacity int64 opt;"
    " 3 freeDiskSpace int64 opt",
    "GetListOfEntriesOfLedgerRequest": "1 ledgerId int64 req",
    "GetListOfEntriesOfLedgerResponse": "1 status enum req; 2 ledgerId int64 req;"
    " 3 availabilityOfEntriesOfLedger bytes opt",
    "StartTLSRequest": "",
    "StartTLSResponse": "",
}

ENUMS = {
    "ProtocolVersion": {"VERSION_ONE": 1, "VERSION_TWO": 2, "VERSION_THREE": 3},
    "StatusCode": {
        "EOK": 0, "ENOLEDGER": 402, "ENOENTRY": 403, "EBADREQ": 404, "EIO": 501, "EUA": 502,
        "EBADVERSION": 503, "EFENCED": 504, "EREADONLY": 505, "ETOOMANYREQUESTS": 506,
        "EUNKNOWNLEDGERSTATE": 507,
    },
    "OperationType": {
        "READ_ENTRY": 1, "ADD_ENTRY": 2, "RANGE_READ_ENTRY": 3, "RANGE_ADD_ENTRY": 4, "AUTH": 5,
        "WRITE_LAC": 6, "READ_LAC": 7, "GET_BOOKIE_INFO": 8, "START_TLS": 9, "FORCE_LEDGER": 10,
        "GET_LIST_OF_ENTRIES_OF_LEDGER": 11, "BATCH_READ_ENTRY": 12,
    },
    "ReadRequest.Flag": {"FENCE_LEDGER": 1, "ENTRY_PIGGYBACK": 2},
    "AddRequest.Flag": {"RECOVERY_ADD": 1},
    "GetBookieInfoRequest.Flags": {"TOTAL_DISK_CAPACITY": 1, "FREE_DISK_SPACE": 2},
}  # fmt: skip

TYPES = {
    FieldDescriptor.TYPE_INT64: "int64",
    FieldDescriptor.TYPE_UINT64: "uint64",
    FieldDescriptor.TYPE_INT32: "int32",
    FieldDescriptor.TYPE_UINT32: "uint32",
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_ENUM: "enum",
    FieldDescriptor.TYPE_MESSAGE: "message",
}


def described(message: Descriptor) -> str:
    fields = []
    for field in sorted(message.fields, key=lambda field: field.number):
        label = "req" if field.is_required else "rep" if field.is_repeated else "opt"
        fields.append(f"{field.number} {field.name} {TYPES[field.type]} {label}")
    return "; ".join(fields)


@pytest.mark.parametrize("name", MESSAGES)
def test_message_has_the_fields_of_the_protocol(name: str) -> None:
    assert described(pb.DESCRIPTOR.message_types_by_name[name]) == MESSAGES[name]


@pytest.mark.parametrize("name", ENUMS)
def test_enum_has_the_numbers_of_the_protocol(name: str) -> None:
    *outer, inner = name.split(".")
    if outer:
        enum = pb.DESCRIPTOR.message_types_by_name[outer[0]].enum_types_by_name[inner]
    else:
        enum = pb.DESCRIPTOR.enum_types_by_name[inner]
    assert {value.name: value.number for value in enum.values} == ENUMS[name]


def test_messages_inside_have_the_right_type() -> None:
    for outer in ("Request", "Response"):
        fields = pb.DESCRIPTOR.message_types_by_name[outer].fields_by_name
        for name, field in fields.items():
            if field.message_type is None or name in ("header", "requestContext"):
                continue
            expected = name[0].upper() + name[1:]
            if name.startswith("auth"):
                expected = "AuthMessage"
            assert field.message_type.name == expected, name


def test_generated_code_is_that_of_the_proto(tmp_path: Path) -> None:
    """`make proto` was run after the last change. Needs grpcio-tools, at the pinned version."""
    command = [
        sys.executable, "-m", "grpc_tools.protoc", "-I.",
        f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", "wire/bookkeeper.proto",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"protoc failed; is grpcio-tools installed? {done.stderr}"
    for name in ("bookkeeper_pb2.py", "bookkeeper_pb2.pyi"):
        fresh = (tmp_path / "wire" / name).read_bytes()
        assert fresh == (ROOT / "wire" / name).read_bytes(), f"wire/{name} is stale: make proto"
