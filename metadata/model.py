"""What the metadata store knows about one ledger, and every change that may be made to it.

Values only. A change is a method that returns a new value and refuses to break a rule; next to
it stands the predicate by which a compare-and-swap loop decides, on the record it has just read,
whether the change is still wanted. A predicate that is false means "done or decided by somebody
else", never "try harder": that is what makes a write whose answer was lost harmless.

Reading is as tolerant as Apache's own reader, because a record that Java can read is a ledger
that somebody relies on. Writing is stricter: no method makes a record that breaks the invariants
(fragments ascending from 0, distinct bookies per ensemble, no fragment beyond the end).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from operator import attrgetter
from typing import Any, Final, Self

from wire.errors import LedgerError
from wire.types import ID_MAX, NO_ENTRY, BookieId, DigestType, LedgerId

#: The metadata format that new ledgers get; a ledger keeps the one it was created with.
FORMAT_DEFAULT: Final = 3
FORMAT_MAX: Final = 3

# Letters, digits, `.`, `-`, and all of ASCII from `:` to `_`; a slash would break the znode path.
_BOOKIE_ID: Final = re.compile(r"[A-Za-z0-9.:-_\-]+")

_first_entry_id: Final = attrgetter("first_entry_id")


class InvalidMetadataError(LedgerError):
    """Stored or given metadata breaks a rule. Retrying does not help; the message says which."""


class TransitionError(InvalidMetadataError):
    """The record as it stands does not allow this change."""


class LedgerState(IntEnum):
    """Numbers are those of the metadata format. Nothing leaves CLOSED."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


def check_bookie_id(text: str) -> BookieId:
    """`text` as a bookie id, if Apache would take it for one.

    An id is part of znode paths, hence no slash, and `readonly` is the name of a directory among
    them. One invalid id in a record makes the whole ledger unreadable for Java.
    """
    if _BOOKIE_ID.fullmatch(text) is None or text.lower() == "readonly":
        raise InvalidMetadataError(
            f"bookie id {text!r} is not valid: use letters, digits and . : - _ only, "
            "and not the word readonly"
        )
    return BookieId(text)


@dataclass(frozen=True, slots=True)
class Fragment:
    """Entries from `first_entry_id` on, up to the next fragment, share this ensemble.

    A position in the ensemble is a slot. Slots decide which bookie holds which entry, so they
    are never reordered.
    """

    first_entry_id: int
    ensemble: tuple[BookieId, ...]

    def with_slots(self, replacements: Mapping[int, BookieId]) -> Self:
        """The same fragment with other bookies in the given slots; all must stay distinct."""
        ensemble = list(self.ensemble)
        for slot, bookie_id in replacements.items():
            if not 0 <= slot < len(ensemble):
                raise TransitionError(
                    f"slot {slot} is outside an ensemble of {len(ensemble)} bookies"
                )
            ensemble[slot] = bookie_id
        _check_distinct(ensemble)
        return replace(self, ensemble=tuple(ensemble))


@dataclass(frozen=True, slots=True)
class FragmentRange:
    """A fragment with its last entry, inclusive; None while it is still growing.

    A fragment without entries ends before it begins: `last_entry_id == first_entry_id - 1`.
    """

    fragment: Fragment
    last_entry_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerMetadata:
    """What the metadata store knows about one ledger. Immutable: a change is a new value."""

    ledger_id: LedgerId
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    fragments: tuple[Fragment, ...]  # ascending by first_entry_id; the last one grows while OPEN
    state: LedgerState = LedgerState.OPEN
    last_entry_id: int | None = None  # known exactly when CLOSED; NO_ENTRY for an empty ledger
    length: int = 0  # payload bytes of all entries when CLOSED, else 0
    digest_type: DigestType | None = None  # both None in format 1, which cannot record them
    password: bytes | None = field(default=None, repr=False)  # in clear: keep it out of logs
    ctime_ms: int | None = None  # None = not stored; the znode's own ctime counts
    custom: tuple[tuple[str, bytes], ...] = ()  # in file order; each key once
    creator_token: int = 0  # meaningful between create and the first update only
    format_version: int = FORMAT_DEFAULT

    def __post_init__(self) -> None:
        if not 0 <= self.ledger_id <= ID_MAX:
            raise InvalidMetadataError(f"ledger id {self.ledger_id} is outside 0..2^63-1")
        if not self.ensemble_size >= self.write_quorum >= self.ack_quorum >= 1:
            raise self._invalid(
                "want ensemble size >= write quorum >= ack quorum >= 1, found "
                f"{self.ensemble_size}, {self.write_quorum}, {self.ack_quorum}"
            )
        self._check_fragments()
        if (self.state is LedgerState.CLOSED) != (self.last_entry_id is not None):
            raise self._invalid("a last entry id belongs to CLOSED ledgers, and to all of them")
        if self.last_entry_id is not None and not NO_ENTRY <= self.last_entry_id <= ID_MAX:
            raise self._invalid(f"last entry id {self.last_entry_id} is outside -1..2^63-1")
        if self.length and self.state is not LedgerState.CLOSED:
            raise self._invalid(f"length {self.length} in state {self.state.name}, want 0")
        if not 0 <= self.length <= ID_MAX:
            raise self._invalid(f"length {self.length} is outside 0..2^63-1")
        if self.password is not None and self.digest_type is None:
            raise self._invalid("there is a password but no known digest type")
        if not 1 <= self.format_version <= FORMAT_MAX:
            raise self._invalid(f"unknown metadata format {self.format_version}")
        if len({key for key, _ in self.custom}) != len(self.custom):
            raise self._invalid("a custom metadata key occurs twice")

    def _check_fragments(self) -> None:
        if not self.fragments:
            raise self._invalid("there is no fragment, every ledger needs at least one")
        previous = NO_ENTRY
        for fragment in self.fragments:
            if fragment.first_entry_id <= previous:
                raise self._invalid(
                    f"a fragment starts at entry {fragment.first_entry_id}, want above {previous}"
                )
            previous = fragment.first_entry_id
            if len(fragment.ensemble) != self.ensemble_size:
                raise self._invalid(
                    f"fragment at entry {fragment.first_entry_id} has {len(fragment.ensemble)} "
                    f"bookies, want the ensemble size {self.ensemble_size}"
                )
            for bookie_id in fragment.ensemble:
                try:
                    check_bookie_id(bookie_id)
                except InvalidMetadataError as error:
                    raise self._invalid(str(error)) from None
        if previous > ID_MAX:
            raise self._invalid(f"fragment at entry {previous} is beyond 2^63-1")

    def _invalid(self, what: str) -> InvalidMetadataError:
        return InvalidMetadataError(f"ledger {self.ledger_id}: {what}")

    def _forbidden(self, what: str) -> TransitionError:
        return TransitionError(f"ledger {self.ledger_id}: {what}")

    # ------------------------------------------------------------------ looking

    @property
    def is_closed(self) -> bool:
        return self.state is LedgerState.CLOSED

    @property
    def last_fragment(self) -> Fragment:
        return self.fragments[-1]

    def fragment_of(self, entry_id: int) -> Fragment:
        """The fragment that holds `entry_id`: the one with the largest start not above it."""
        index = bisect_right(self.fragments, entry_id, key=_first_entry_id) - 1
        if index < 0:
            raise self._invalid(
                f"no fragment holds entry {entry_id}, the first one starts at "
                f"{self.fragments[0].first_entry_id}"
            )
        return self.fragments[index]

    def fragment_at(self, first_entry_id: int) -> Fragment | None:
        """The fragment that starts exactly there."""
        index = bisect_right(self.fragments, first_entry_id, key=_first_entry_id) - 1
        if index < 0 or self.fragments[index].first_entry_id != first_entry_id:
            return None
        return self.fragments[index]

    def ranges(self) -> Iterator[FragmentRange]:
        """Every fragment with its last entry.

        The end of a CLOSED ledger cuts off whatever lies beyond, also in the unlucky records
        whose last fragments start behind it.
        """
        for fragment, following in zip(self.fragments, self.fragments[1:], strict=False):
            last = following.first_entry_id - 1
            if self.last_entry_id is not None:
                last = max(fragment.first_entry_id - 1, min(last, self.last_entry_id))
            yield FragmentRange(fragment, last)
        end = self.last_entry_id
        if end is not None:
            end = max(self.last_fragment.first_entry_id - 1, end)
        yield FragmentRange(self.last_fragment, end)

    def bookies(self) -> frozenset[BookieId]:
        """Every bookie that any fragment names."""
        return frozenset(bookie for fragment in self.fragments for bookie in fragment.ensemble)

    def custom_value(self, key: str) -> bytes | None:
        return dict(self.custom).get(key)

    # ------------------------------------------------------------------ predicates

    def needs_ensemble_change(self, failed: Mapping[int, BookieId]) -> bool:
        """Whether a writer should still replace `failed` (slot to bookie).

        False when somebody else closed the ledger or recovers it (look at `state` to tell the
        caller which), and when every failed bookie has left its slot already.
        """
        return self.state is LedgerState.OPEN and bool(self.failed_slots(failed))

    def failed_slots(self, failed: Mapping[int, BookieId]) -> dict[int, BookieId]:
        """Those of `failed` that still sit in their slot of the last fragment."""
        ensemble = self.last_fragment.ensemble
        return {
            slot: bookie
            for slot, bookie in failed.items()
            if 0 <= slot < len(ensemble) and ensemble[slot] == bookie
        }

    def is_closed_at(self, *, last_entry_id: int, length: int) -> bool:
        """Whether a close with these values has nothing left to do, whoever did it."""
        return self.is_closed and (self.last_entry_id, self.length) == (last_entry_id, length)

    def holds(self, *, first_entry_id: int, slot: int, bookie_id: BookieId) -> bool:
        """Whether re-replication should still replace this bookie in this fragment."""
        fragment = self.fragment_at(first_entry_id)
        return (
            fragment is not None
            and 0 <= slot < len(fragment.ensemble)
            and fragment.ensemble[slot] == bookie_id
        )

    def mentions(self, bookie_id: BookieId) -> bool:
        """Whether a rename of this bookie has anything to do."""
        return any(bookie_id in fragment.ensemble for fragment in self.fragments)

    # ------------------------------------------------------------------ changes

    def in_recovery(self) -> Self:
        """OPEN to IN_RECOVERY, before the first fencing request goes out.

        From here on the last fragment belongs to the closing write alone: an ensemble change
        needs OPEN, so its loop notices. Found IN_RECOVERY already means carry on without writing.
        """
        if self.state is not LedgerState.OPEN:
            raise self._forbidden(f"recovery starts from OPEN, found {self.state.name}")
        return self._changed(state=LedgerState.IN_RECOVERY)

    def closed_at(self, *, last_entry_id: int, length: int) -> Self:
        """OPEN to CLOSED, by the writer, at its LAC.

        A ledger under recovery is not the writer's any more: the recovering client may have
        found, and shown to readers, entries beyond this writer's LAC. Apache's writer closes
        over it all the same; ours reports that it was fenced.
        """
        if self.state is not LedgerState.OPEN:
            raise self._forbidden(f"a writer closes from OPEN, found {self.state.name}")
        return self._closed(self.fragments, last_entry_id=last_entry_id, length=length)

    def closed_by_recovery(
        self, *, last_entry_id: int, length: int, fragments: Sequence[Fragment] = ()
    ) -> Self:
        """IN_RECOVERY to CLOSED, with the ensembles that recovery worked on.

        They come only now, because an ensemble recorded earlier would send a later recovering
        client to bookies that never held the entries. Each goes to the end of the list, and one
        that starts where the last fragment starts takes its place.
        """
        if self.state is not LedgerState.IN_RECOVERY:
            raise self._forbidden(f"recovery closes from IN_RECOVERY, found {self.state.name}")
        merged = self.fragments
        for fragment in fragments:
            merged = self._with_tail(merged, fragment)
        return self._closed(merged, last_entry_id=last_entry_id, length=length)

    def with_ensemble_change(
        self, *, first_entry_id: int, replacements: Mapping[int, BookieId]
    ) -> Self:
        """Let entries from `first_entry_id` (LAC + 1) on go to an ensemble with new bookies.

        A later start appends a fragment. The same start overwrites the last one, none of whose
        entries is confirmed. An earlier start would re-home confirmed entries: refused. Earlier
        fragments stay as they are, since re-replication may be changing them right now.
        """
        if self.state is not LedgerState.OPEN:
            raise self._forbidden(f"an ensemble changes while OPEN, found {self.state.name}")
        changed = self.last_fragment.with_slots(replacements)
        return self._changed(
            fragments=self._with_tail(
                self.fragments, replace(changed, first_entry_id=first_entry_id)
            )
        )

    def with_bookie_replaced(
        self, *, first_entry_id: int, slot: int, old: BookieId, new: BookieId
    ) -> Self:
        """Put `new` in the place of `old` after re-replication copied what that slot must hold.

        Touches one slot of one fragment and nothing else. The growing fragment of a ledger that
        is not CLOSED is not ours to touch: entries may still be added to it. Several slots:
        chain the calls, then write once.
        """
        fragment = self.fragment_at(first_entry_id)
        if fragment is None or not self.holds(
            first_entry_id=first_entry_id, slot=slot, bookie_id=old
        ):
            raise self._forbidden(
                f"{old} is not in slot {slot} of a fragment at entry {first_entry_id}"
            )
        if fragment is self.last_fragment and not self.is_closed:
            raise self._forbidden(
                f"the fragment at entry {first_entry_id} may still grow, state {self.state.name}"
            )
        changed = fragment.with_slots({slot: new})
        return self._changed(
            fragments=tuple(changed if other is fragment else other for other in self.fragments)
        )

    def with_bookie_renamed(self, *, old: BookieId, new: BookieId) -> Self:
        """The same bookie under a new id, in every fragment and in any state."""

        def renamed(fragment: Fragment) -> Fragment:
            slots = [slot for slot, bookie in enumerate(fragment.ensemble) if bookie == old]
            return fragment.with_slots(dict.fromkeys(slots, new)) if slots else fragment

        return self._changed(fragments=tuple(renamed(fragment) for fragment in self.fragments))

    def _with_tail(
        self, fragments: tuple[Fragment, ...], fragment: Fragment
    ) -> tuple[Fragment, ...]:
        last = fragments[-1].first_entry_id
        if fragment.first_entry_id < last:
            raise self._forbidden(
                f"a new ensemble at entry {fragment.first_entry_id} would change confirmed "
                f"entries, the last fragment starts at {last}"
            )
        _check_distinct(fragment.ensemble)
        kept = fragments[:-1] if fragment.first_entry_id == last else fragments
        return (*kept, fragment)

    def _closed(self, fragments: tuple[Fragment, ...], *, last_entry_id: int, length: int) -> Self:
        if fragments[-1].first_entry_id > last_entry_id + 1:
            raise self._forbidden(
                f"cannot end at entry {last_entry_id}, the last fragment starts at "
                f"{fragments[-1].first_entry_id}"
            )
        return self._changed(
            fragments=fragments,
            state=LedgerState.CLOSED,
            last_entry_id=last_entry_id,
            length=length,
        )

    def _changed(self, **fields: Any) -> Self:
        # The token tells a creator its own lost create from somebody else's; Java writes 0 with
        # the first update, so a token that outlived one would be a lie told by us alone.
        return replace(self, creator_token=0, **fields)


def new_ledger(
    *,
    ledger_id: LedgerId,
    ensemble: Sequence[BookieId],
    write_quorum: int,
    ack_quorum: int,
    digest_type: DigestType,
    password: bytes,
    custom: Mapping[str, bytes] | None = None,
    ctime_ms: int | None = None,
    creator_token: int = 0,
    format_version: int = FORMAT_DEFAULT,
) -> LedgerMetadata:
    """The record that creates a ledger: OPEN, one fragment at entry 0.

    Digest type and password are always stored together, the password even when empty: Java reads
    a record without them and then fails to write it back.
    """
    _check_distinct(ensemble)
    if not 0 <= creator_token <= ID_MAX:
        raise InvalidMetadataError(f"ledger {ledger_id}: creator token outside 0..2^63-1")
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=len(ensemble),
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        fragments=(Fragment(0, tuple(ensemble)),),
        digest_type=digest_type,
        password=password,
        custom=tuple((custom or {}).items()),
        ctime_ms=ctime_ms,
        creator_token=creator_token,
        format_version=format_version,
    )


def _check_distinct(ensemble: Iterable[BookieId]) -> None:
    seen: set[BookieId] = set()
    for bookie_id in ensemble:
        if bookie_id in seen:
            raise TransitionError(f"bookie {bookie_id} would be twice in one ensemble")
        seen.add(bookie_id)
