"""What a task does: read the ranges of its partition straight from the bookies, as Arrow batches.

The plan names records and addresses, so the metadata store is asked only when every known replica
of something has failed: then bookies may have been replaced, and the record says by whom.
"""

from __future__ import annotations

import itertools
import logging
import random
import socket
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

import trio

from ledger_client import Bookies, DefaultPolicy, DigestType, LedgerClient
from ledger_client.arrow import BatchBuilder
from ledger_client.core.placement import Cluster, Health
from ledger_client.core.scan import Pace
from ledger_client.environment import Access, ReadEnvironment
from ledger_client.pool import Pool
from ledger_client.scan import Range, ScanOptions, Status, scan
from ledger_client.security import Security, read_security, secure_network
from metadata.model import LedgerMetadata
from spark import credentials
from spark.bridge import Emit
from spark.core.plan import moved_on
from spark.credentials import Passwords
from spark.errors import Code, coded
from spark.options import SourceOptions
from spark.partitions import PartitionPlan, PlannedRange, first_slot
from wire.errors import LedgerError
from wire.types import BookieId

_log = logging.getLogger(__name__)

#: A record that was read again a moment ago is not asked for again.
_FRESH_SECONDS: Final = 10.0
#: Tasks lose the same bookie at the same time; their questions are spread over this long.
_JITTER_SECONDS: Final = 0.5
_WARNINGS_MAX: Final = 20


async def scan_partition(
    plan: PartitionPlan,
    options: SourceOptions,
    schema: Any,
    emit: Emit[Any],
    *,
    attempt: int = 0,
) -> None:
    """Hand over the rows of a partition as record batches of this Arrow schema."""
    security = read_security(options.client_conf)
    records = _Records(options.metadata_service_uri, plan.bookies, security)
    chance = random.Random()
    pool = Pool(lambda: records.bookies, network=secure_network(security), chance=chance)
    records.pool = pool
    environment = ReadEnvironment(
        pool=pool,
        bookies=lambda: records.bookies,
        policy=NearFirst.of(plan, options.locality, attempt=attempt),
        chance=chance,
        request_ids=itertools.count(1),
    )
    batches = _batches(plan, options, schema, environment, records)
    failure: LedgerError | None = None
    async with trio.open_nursery() as nursery:
        await nursery.start(pool.run)
        try:
            async with aclosing(batches):
                async for batch in batches:
                    await emit(batch)
        except LedgerError as error:  # raised below: a nursery would wrap it in a group
            failure = error
        finally:
            pool.close()
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise coded(failure) from failure


async def _batches(
    plan: PartitionPlan,
    options: SourceOptions,
    schema: Any,
    environment: ReadEnvironment,
    records: _Records,
) -> AsyncGenerator[Any, None]:
    has_status = "status" in schema.names
    builder = BatchBuilder(schema, rows=options.batch_rows, bytes=options.batch_bytes)
    runs = scan(
        environment,
        _ranges(plan.ranges, options),
        refresh=records.refresh,
        options=ScanOptions(
            chunk_bytes=options.read_chunk_bytes,
            window_bytes=options.read_window_bytes,
            verify_digest=options.verify_digest,
            with_lacs="last_confirmed" in schema.names,
            keep_missing=not options.fail_on_data_loss,
            keep_rotten=options.null_on_digest_error,
            is_scan=options.read_class_batch,
            request_seconds=options.read_timeout_seconds,
            rounds=options.retry_rounds,
        ),
        pace=_pace(options),
    )
    warnings = 0
    async with aclosing(runs):
        async for source, run in runs:
            if run.status is not Status.OK:
                warnings += 1
                if warnings <= _WARNINGS_MAX:
                    code = (
                        Code.ENTRY_MISSING if run.status is Status.MISSING else Code.DIGEST_FAILED
                    )
                    _log.warning(
                        "%s ledger=%d entry=%d: %d entries, %s",
                        code, source.metadata.ledger_id, run.first, run.count,
                        "rows say so" if has_status else "dropped: failOnDataLoss is false",
                    )  # fmt: skip
                if not has_status:
                    continue
            for batch in builder.add(source, run):
                yield batch
    for batch in builder.finish():
        yield batch


def _ranges(planned: Sequence[PlannedRange], options: SourceOptions) -> Iterator[Range]:
    passwords: Passwords | None = None
    for one in planned:
        metadata = one.metadata
        # Only keyed digests need the password to be checked; without one, no secret is looked up.
        password = b""
        digest_type = metadata.digest_type or DigestType.CRC32
        if digest_type is DigestType.HMAC and options.verify_digest:
            passwords = passwords or credentials.resolve(options.credentials)
            password = passwords.of(metadata.ledger_id)
        yield Range(
            metadata=metadata,
            access=Access.of(metadata.ledger_id, digest_type, password),
            first=one.first,
            last=one.last,
            slot=first_slot(one),
            entry_bytes=one.entry_bytes,
        )


def _pace(options: SourceOptions) -> Pace | None:
    if options.read_bytes_per_second is None:
        return None
    share = options.read_bytes_per_second / options.parallelism
    return Pace(bytes_per_second=share, burst_bytes=share / 4)


class _Records:
    """Records and addresses as the plan has them, and fresher ones once they are needed."""

    def __init__(self, uri: str, bookies: Bookies, security: Security) -> None:
        self.bookies = bookies
        self._security = security
        self.pool: Pool | None = None
        self._uri = uri
        self._chance = random.Random()
        self._read: dict[int, tuple[float, LedgerMetadata]] = {}

    async def refresh(self, known: LedgerMetadata) -> LedgerMetadata:
        read_at, metadata = self._read.get(known.ledger_id, (-_FRESH_SECONDS, known))
        if trio.current_time() < read_at + _FRESH_SECONDS:
            return metadata
        await trio.sleep(self._chance.uniform(0.0, _JITTER_SECONDS))
        async with LedgerClient(self._uri, **self._security) as client:
            metadata = await client.metadata(known.ledger_id)
            now = client.bookies()
        before, self.bookies = self.bookies, now
        if self.pool is not None:
            self.pool.on_bookies(before, now)
        self._read[known.ledger_id] = trio.current_time(), metadata
        return metadata


class NearFirst(DefaultPolicy):
    """Replicas on this host first, then those of its rack, then the others.

    Among those that are equally near, and healthy, the order stays as it was, moved on by the
    attempts of the task.
    """

    def __init__(self, distance: Mapping[BookieId, int], attempt: int = 0) -> None:
        self._distance = distance
        self._attempt = attempt

    @classmethod
    def of(cls, plan: PartitionPlan, locality: str, *, attempt: int = 0) -> NearFirst:
        """`none` knows no distances; `host` only whether it is this one."""
        if locality == "none":
            return cls({}, attempt)
        here = {socket.gethostname(), socket.getfqdn()}
        rack = next((plan.racks[host] for host in here if host in plan.racks), None)
        distance: dict[BookieId, int] = {}
        for bookie_id, info in plan.info.items():
            host = info.rpc.host if info.rpc is not None else ""
            rack_of_bookie = plan.racks.get(host, plan.racks.get(bookie_id))
            if host in here:
                distance[bookie_id] = 0
            elif locality == "rack" and rack is not None and rack_of_bookie == rack:
                distance[bookie_id] = 1
        return cls(distance, attempt)

    def read_order(
        self,
        slots: Sequence[int],
        ensemble: Sequence[BookieId],
        cluster: Cluster,
        health: Health,
    ) -> tuple[int, ...]:
        near = sorted(
            moved_on(slots, self._attempt), key=lambda slot: self._distance.get(ensemble[slot], 2)
        )
        return super().read_order(near, ensemble, cluster, health)
