"""The table of status codes, against the numbers that Java peers use."""

from __future__ import annotations

import pytest

from wire import bookkeeper_pb2 as pb
from wire import errors
from wire.errors import STATUS_BY_V2, STATUS_BY_V3, LedgerError, Status

#: v2 code, v3 code, v3 name, code of Apache's client (None: depends on the operation), ours.
TABLE = [
    (0, 0, "EOK", 0, None),
    (1, 402, "ENOLEDGER", -7, errors.NoSuchLedgerError),
    (2, 403, "ENOENTRY", -13, errors.NoSuchEntryError),
    (100, 404, "EBADREQ", None, errors.BadRequestError),
    (101, 501, "EIO", None, errors.BookieIOError),
    (102, 502, "EUA", -102, errors.UnauthorizedError),
    (103, 503, "EBADVERSION", -16, errors.VersionError),
    (104, 504, "EFENCED", -101, errors.FencedError),
    (105, 505, "EREADONLY", -104, errors.ReadOnlyBookieError),
    (106, 506, "ETOOMANYREQUESTS", -105, errors.TooManyRequestsError),
    (107, 507, "EUNKNOWNLEDGERSTATE", -108, errors.UnknownLedgerStateError),
]


@pytest.mark.parametrize(("v2", "v3", "name", "client", "error"), TABLE)
def test_status_has_its_numbers_and_error(
    v2: int, v3: int, name: str, client: int | None, error: type[LedgerError] | None
) -> None:
    status = STATUS_BY_V2[v2]
    assert STATUS_BY_V3[v3] is status
    assert (status.v2, status.v3, status.client_code, status.error) == (v2, v3, client, error)
    assert pb.StatusCode.Value(name) == v3


def test_table_is_complete() -> None:
    assert len(Status) == len(TABLE) == len(STATUS_BY_V2) == len(STATUS_BY_V3)
    assert set(STATUS_BY_V3) == set(pb.StatusCode.values())


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.OK])
def test_every_refusal_has_an_error_of_its_own(status: Status) -> None:
    assert status.error is not None
    assert issubclass(status.error, LedgerError)
    assert [other for other in Status if other.error is status.error] == [status]


def test_only_statements_of_fact_count_as_not_found() -> None:
    """Recovery may end a ledger on these two; a doubt must never look like them."""
    found = {
        status
        for status in Status
        if status.error is not None and issubclass(status.error, errors.NotFoundError)
    }
    assert found == {Status.NO_LEDGER, Status.NO_ENTRY}


def test_losing_the_ledger_is_never_transient() -> None:
    for status in (Status.FENCED, Status.UNAUTHORIZED, Status.BAD_REQUEST, Status.BAD_VERSION):
        assert status.error is not None
        assert not issubclass(status.error, errors.TransientError)
