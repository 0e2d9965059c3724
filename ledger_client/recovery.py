"""Opening a ledger with recovery: the task that opens it drives the core to its end.

A caller that is cancelled half way leaves what a client that died would leave: a ledger that says
IN_RECOVERY, for the next one to finish.
"""

from __future__ import annotations

from collections import deque

import trio

from ledger_client.core.commands import (
    AddAnswer,
    AskLac,
    AskRecoveryRead,
    ChooseReplacements,
    Command,
    FinishRecovery,
    LacAnswer,
    Outcome,
    PackageRecovered,
    ReadLength,
    RecoveryEnded,
    RecoveryReadAnswer,
    SendAdd,
    StartRecovery,
)
from ledger_client.core.distribution import Distribution
from ledger_client.core.recovery import Recovery
from ledger_client.entries import EntryReader
from ledger_client.environment import Access, Environment
from ledger_client.errors import ClientClosedError, error_of, kind_of
from ledger_client.health import CorruptCopy
from ledger_client.requests import Adds, Answer, FenceReads, FoundSingly, Mailbox
from ledger_client.sender import records_of
from metadata import update
from metadata.model import LedgerMetadata
from metadata.update import VersionedLedger
from wire.batch import join_records
from wire.entry import Entries, Entry, decode_entry, encode_entry
from wire.errors import CorruptionError, LedgerError
from wire.types import LAST_ENTRY, NO_ENTRY, BookieId, Flag

_Ask = AskLac | AskRecoveryRead


class LedgerRecovery:
    """One attempt. `run` it once."""

    def __init__(self, environment: Environment, ledger: VersionedLedger, access: Access) -> None:
        self._environment = environment
        self._access = access
        self._ledger = ledger
        self._distribution = Distribution.of(ledger.metadata)
        self._core = Recovery(ledger.metadata, request_ids=environment.request_ids)
        self._mail = Mailbox()
        self._commands: deque[Command] = deque()
        #: Request to what it asks of its bookie, by entry; LAST_ENTRY asks for the LAC.
        self._reads: dict[int, dict[int, _Ask]] = {}
        self._records: dict[int, bytes] = {}  # first entry to its run of records
        self._end: RecoveryEnded | None = None

    async def run(self) -> VersionedLedger:
        """The closed ledger's record, or the error why it cannot be had now."""
        self._environment.handles.add(self)
        try:
            self._commands.extend(self._core.start())
            while self._end is None:
                while self._commands:
                    await self._obey(self._commands.popleft())
                if self._end is None:
                    self._take(await self._mail.wait())
        finally:
            self._environment.handles.discard(self)
        if self._end.failure is not None:
            raise error_of(self._environment.explained(self._end.failure))
        return self._ledger

    def on_client_closed(self) -> None:
        self._mail.close()

    # ------------------------------------------------------------------ answers

    def _take(self, answers: list[Answer]) -> None:
        if self._mail.is_closed:
            raise ClientClosedError(
                f"ledger {self._access.ledger_id}: the client was closed during recovery"
            )
        lacs: list[LacAnswer] = []
        reads: list[RecoveryReadAnswer] = []
        adds: list[AddAnswer] = []
        for request_id, outcome, content in answers:
            asks = self._reads.pop(request_id, None)
            if asks is None:
                adds.append(AddAnswer(request_id, outcome, content))  # type: ignore[arg-type]
                continue
            found: FoundSingly = content if isinstance(content, dict) else {}
            for entry_id, ask in asks.items():
                verdict, entry = self._verified(ask, entry_id, *found.get(entry_id, (outcome, b"")))
                if isinstance(ask, AskLac):
                    lac = entry.lac if entry else NO_ENTRY
                    size = len(entry.payload) if entry else 0
                    lacs.append(LacAnswer(ask.request_id, verdict, lac, size))
                else:
                    reads.append(
                        RecoveryReadAnswer(
                            request_id=ask.request_id,
                            outcome=verdict,
                            length=entry.length if entry else 0,
                            payload=entry.payload if entry else None,
                        )
                    )
        now = trio.current_time()
        if lacs:
            self._commands.extend(self._core.on_lac_answers(lacs, now))
        if reads:
            self._commands.extend(self._core.on_read_answers(reads, now))
        if adds:
            self._commands.extend(self._core.on_add_answers(adds, now))

    def _verified(
        self, ask: _Ask, entry_id: int, outcome: Outcome, body: bytes
    ) -> tuple[Outcome, Entry | None]:
        if outcome is not Outcome.OK:
            return outcome, None
        try:
            entry = decode_entry(
                body,
                ledger_id=self._access.ledger_id,
                entry_id=None if entry_id == LAST_ENTRY else entry_id,
                digest=self._access.digest,
            )
        except CorruptionError:
            copy = CorruptCopy(self._access.ledger_id, entry_id, ask.bookie_id)
            self._environment.on_corruption(copy)
            return Outcome.CORRUPT, None
        return Outcome.OK, entry

    # ------------------------------------------------------------------ commands

    async def _obey(self, command: Command) -> None:
        match command:
            case StartRecovery() | FinishRecovery():
                await self._update(command)
            case AskLac():
                self._fence({LAST_ENTRY: command})
            case AskRecoveryRead():
                self._read(command)
            case PackageRecovered():
                self._package(command)
            case SendAdd():
                self._send(command)
            case ChooseReplacements():
                await trio.sleep(command.delay_seconds)
                metadata = self._ledger.metadata
                chosen = self._environment.replacements(
                    command.ensemble,
                    command.failed,
                    command.avoid,
                    write_quorum=metadata.write_quorum,
                    ack_quorum=metadata.ack_quorum,
                )
                self._commands.extend(self._core.on_replacements(chosen, trio.current_time()))
            case ReadLength(entry_id):
                await self._read_length(entry_id)
            case RecoveryEnded():
                self._end = command
            case _:
                raise AssertionError(command)

    async def _update(self, command: StartRecovery | FinishRecovery) -> None:
        change: update.LedgerUpdate = update.StartRecovery()
        if isinstance(command, FinishRecovery):
            change = update.FinishRecovery(
                last_entry_id=command.last_entry_id,
                length=command.length,
                fragments=command.fragments,
            )
        try:
            updated = await self._environment.ledgers.update(
                self._access.ledger_id, change, known=self._ledger
            )
        except LedgerError as error:
            self._commands.extend(self._core.on_metadata_failed(kind_of(error)))
            return
        self._ledger = updated.ledger
        metadata = updated.ledger.metadata
        if isinstance(command, FinishRecovery):
            self._commands.extend(self._core.on_finished(metadata))
        else:
            self._commands.extend(self._core.on_started(metadata, wrote=updated.wrote))

    def _read(self, ask: AskRecoveryRead) -> None:
        """This and the reads that follow it, a request per bookie."""
        together: dict[BookieId, dict[int, _Ask]] = {ask.bookie_id: {ask.entry_id: ask}}
        while self._commands and isinstance(more := self._commands[0], AskRecoveryRead):
            together.setdefault(more.bookie_id, {})[more.entry_id] = more
            self._commands.popleft()
        for asks in together.values():
            self._fence(asks)

    def _fence(self, asks: dict[int, _Ask]) -> None:
        first = next(iter(asks.values()))
        self._reads[first.request_id] = asks
        request = FenceReads(
            request_id=first.request_id,
            sink=self._mail.take,
            ledger_id=self._access.ledger_id,
            entry_ids=list(asks),
            master_key=self._access.master_key,
        )
        self._environment.pool.ask(first.bookie_id, request)

    def _package(self, package: PackageRecovered) -> None:
        entries: list[bytes] = []
        for entry_id, (length, payload) in enumerate(package.entries, package.first):
            assert isinstance(payload, bytes)
            entries.append(
                encode_entry(
                    payload,
                    ledger_id=self._access.ledger_id,
                    entry_id=entry_id,
                    lac=package.lac,
                    length=length,
                    digest=self._access.digest,
                )
            )
        self._records[package.first] = join_records(entries)

    def _send(self, send: SendAdd) -> None:
        records = self._records[send.first]
        entry_ids = self._distribution.entries_of(slot=send.slot, first=send.first, last=send.last)
        if self._distribution.is_striped:
            records = records_of(records, send.first, entry_ids)
        request = Adds(
            request_id=send.request_id,
            sink=self._mail.take,
            ledger_id=self._access.ledger_id,
            entry_ids=entry_ids,
            records=records,
            master_key=self._access.master_key,
            flags=Flag.RECOVERY_ADD | Flag.HIGH_PRIORITY,
        )
        self._environment.pool.ask(send.bookie_id, request)

    async def _read_length(self, entry_id: int) -> None:
        async def reread() -> LedgerMetadata:
            return (await self._environment.ledgers.read(self._access.ledger_id)).metadata

        reader = EntryReader(
            self._environment,
            self._access,
            self._ledger.metadata,
            first=entry_id,
            last=entry_id,
            reread=reread,
        )
        (part,) = await reader.next_parts()  # its error is ours
        assert isinstance(part.data, Entries)
        self._commands.extend(self._core.on_length(part.data.lengths[0]))
