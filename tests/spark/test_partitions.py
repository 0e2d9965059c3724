"""What a partition carries, and which replica its task asks first."""

from __future__ import annotations

import pickle
import socket

import pytest

from ledger_client import Bookies
from ledger_client.core.placement import Cluster, Health
from metadata.model import Fragment, LedgerMetadata, LedgerState
from metadata.service_info import bookie_service_info
from spark.errors import SourceError
from spark.options import parse_source
from spark.partitions import PartitionPlan, PlannedRange, partitions_of, trimmed
from spark.scanning import NearFirst
from wire.types import BookieId, DigestType, LedgerId

A, B, C, D = (BookieId(f"{name}:3181") for name in "abcd")


def ledger(ledger_id: int = 7, *, last: int = 2999) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id=LedgerId(ledger_id), ensemble_size=3, write_quorum=3, ack_quorum=2,
        fragments=(Fragment(0, (A, B, C)), Fragment(1000, (A, D, C)), Fragment(2000, (B, D, C))),
        state=LedgerState.CLOSED, last_entry_id=last, length=(last + 1) * 100,
        digest_type=DigestType.CRC32C,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("first", "last", "starts"),
    [(0, 2999, [0, 1000, 2000]), (0, 999, [0]), (999, 1000, [0, 1000]), (1000, 1999, [1000]),
     (1500, 1500, [1000]), (2000, 2999, [2000])],
)  # fmt: skip
def test_record_is_trimmed_to_the_fragments_that_hold_its_entries(
    first: int, last: int, starts: list[int]
) -> None:
    kept = trimmed(ledger(), first, last)
    assert [fragment.first_entry_id for fragment in kept.fragments] == starts
    for entry_id in (first, last):
        assert kept.fragment_of(entry_id) == ledger().fragment_of(entry_id)


def bookies() -> Bookies:
    info = {name: bookie_service_info(host=name[0], port=3181) for name in (A, B, C, D)}
    return Bookies(writable=frozenset({A, B, C}), read_only=frozenset({D}), info=info)


def test_partition_carries_the_bookies_of_its_own_entries_only() -> None:
    options = parse_source(
        {
            "metadataServiceUri": "zk://h/ledgers",
            "ledgers": "7",
            "minPartitions": "3",
            "openCostBytes": "0",
        }
    )
    planned = [PlannedRange(ledger(), 0, 2999, 100.0)]

    found = partitions_of(planned, options, bookies(), keep_order=True)

    plans: list[PartitionPlan] = [pickle.loads(pickle.dumps(one)).value for one in found]
    assert [(p.ranges[0].first, p.ranges[0].last) for p in plans] == [
        (0, 999), (1000, 1999), (2000, 2999),
    ]  # fmt: skip
    assert [set(p.info) for p in plans] == [{A, B, C}, {A, C, D}, {B, C, D}]
    assert plans[1].bookies.read_only == {D}
    assert plans[0].bookies.endpoint(A).host == "a"


def test_table_of_racks_that_cannot_be_read_is_a_bad_option() -> None:
    options = parse_source(
        {"metadataServiceUri": "zk://h/ledgers", "ledgers": "7", "topologyTable": "/no/such/file"}
    )
    with pytest.raises(SourceError, match=r"^BAD_OPTION: the topology table /no/such/file"):
        partitions_of([PlannedRange(ledger(), 0, 9, 1.0)], options, bookies())


def order(policy: NearFirst, **health: object) -> tuple[int, ...]:
    cluster = Cluster(frozenset({A, B, C}))
    return policy.read_order([0, 1, 2], (A, B, C), cluster, Health(**health))  # type: ignore[arg-type]


def test_replicas_of_this_host_come_first_then_those_of_its_rack() -> None:
    here = socket.gethostname()
    plan = PartitionPlan(
        info={
            A: bookie_service_info(host="a", port=1),
            B: bookie_service_info(host="b", port=1),
            C: bookie_service_info(host=here, port=1),
        },
        racks={here: "/r1", "b": "/r1", "a": "/r2"},
    )
    assert order(NearFirst.of(plan, "rack")) == (2, 1, 0)
    assert order(NearFirst.of(plan, "host")) == (2, 0, 1)
    assert order(NearFirst.of(plan, "none")) == (0, 1, 2)
    assert order(NearFirst.of(plan, "none", attempt=1)) == (1, 2, 0)
    assert order(NearFirst.of(plan, "host", attempt=1)) == (2, 1, 0)


def test_replica_that_failed_is_not_asked_first_however_near_it_is() -> None:
    plan = PartitionPlan(info={C: bookie_service_info(host=socket.gethostname(), port=1)})
    assert order(NearFirst.of(plan, "host"), failed_at={C: 1.0}) == (0, 1, 2)
