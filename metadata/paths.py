"""Where things are in the tree: ledger ids to znode paths and back, and every fixed name.

The encoding of ledger paths is a contract with garbage collection. A bookie walks the tree in
the order of one encoding and deletes what it does not meet, so a ledger written elsewhere is a
ledger whose data will be destroyed. Hence one object per layout, and parsing accepts a path only
if the same layout would write it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from metadata.model import InvalidMetadataError, check_bookie_id
from wire.types import ID_MAX, BookieId, LedgerId

#: From this id on the hybrid layout uses the long form. 2^31 - 1 itself is long already.
LONG_FORM_FROM: Final = 2**31 - 1

#: Children of the root that are no ledgers. Names starting with `ID-` belong here too.
SPECIAL_NAMES: Final = frozenset(
    {
        "available",
        "cookies",
        "LAYOUT",
        "INSTANCEID",
        "underreplication",
        "idgen",
        "idgen-long",
    }
)
SEQUENTIAL_ID_PREFIX: Final = "ID-"
HIGH_BITS_PREFIX: Final = "HOB-"
VOTE_PREFIX: Final = "V_"

_SHORT: Final = re.compile(r"(\d{2})/(\d{4})/L(\d{4})", re.ASCII)
_LONG: Final = re.compile(r"(\d{3})/(\d{4})/(\d{4})/(\d{4})/L(\d{4})", re.ASCII)
_FLAT: Final = re.compile(r"L(\d{10})", re.ASCII)
_MARK: Final = re.compile(r"urL(\d{10,19})", re.ASCII)
_SEQUENCE: Final = re.compile(r"-?\d{1,10}", re.ASCII)


class LayoutType(Enum):
    """The four ways to lay ledgers out below the root."""

    FLAT = "flat"
    LEGACY_HIERARCHICAL = "legacyhierarchical"
    HIERARCHICAL = "hierarchical"
    LONG_HIERARCHICAL = "longhierarchical"


_FORMS: Final = {
    LayoutType.FLAT: (_FLAT,),
    LayoutType.LEGACY_HIERARCHICAL: (_SHORT,),
    LayoutType.HIERARCHICAL: (_SHORT, _LONG),
    LayoutType.LONG_HIERARCHICAL: (_LONG,),
}
_TOP_LEVEL: Final = {
    LayoutType.FLAT: re.compile(r"L\d{10}", re.ASCII),
    LayoutType.LEGACY_HIERARCHICAL: re.compile(r"\d{2}", re.ASCII),
    LayoutType.HIERARCHICAL: re.compile(r"\d{2,3}", re.ASCII),
    LayoutType.LONG_HIERARCHICAL: re.compile(r"\d{3}", re.ASCII),
}


def check_root(root: str) -> str:
    """`root` as the absolute path below which a cluster lives."""
    if not root.startswith("/") or root.endswith("/") or "//" in root:
        raise InvalidMetadataError(
            f"ledgers root path {root!r} is not valid: write an absolute path such as /ledgers, "
            "without a slash at the end"
        )
    return root


def is_special_name(name: str) -> bool:
    """Whether a child of the root belongs to the cluster and is no ledger."""
    return name in SPECIAL_NAMES or name.startswith(SEQUENTIAL_ID_PREFIX)


@dataclass(frozen=True, slots=True)
class LedgerPaths:
    """Ledger ids to paths and back, in one layout."""

    root: str
    layout: LayoutType

    def __post_init__(self) -> None:
        check_root(self.root)

    @property
    def id_max(self) -> int:
        """The largest id that this layout can tell apart from all others."""
        if self.layout in (LayoutType.FLAT, LayoutType.LEGACY_HIERARCHICAL):
            return LONG_FORM_FROM - 1
        return ID_MAX

    @property
    def removes_parents(self) -> bool:
        """Whether whoever deletes a ledger also deletes parents that became empty."""
        return self.layout in (LayoutType.HIERARCHICAL, LayoutType.LONG_HIERARCHICAL)

    def path_of(self, ledger_id: LedgerId) -> str:
        if not 0 <= ledger_id <= self.id_max:
            raise InvalidMetadataError(
                f"ledger id {ledger_id} does not fit the {self.layout.value} layout, "
                f"want 0..{self.id_max}"
            )
        if self.layout is LayoutType.FLAT:
            return f"{self.root}/L{ledger_id:010d}"
        if self._is_long(ledger_id):
            d = f"{ledger_id:019d}"
            return f"{self.root}/{d[:3]}/{d[3:7]}/{d[7:11]}/{d[11:15]}/L{d[15:]}"
        d = f"{ledger_id:010d}"
        return f"{self.root}/{d[:2]}/{d[2:6]}/L{d[6:]}"

    def id_of(self, path: str) -> LedgerId:
        """The id of the ledger at `path`.

        Refuses a path that nobody would look at for that id: taking the ledger for present
        hides a mistake that costs data. Ids above `id_max` that somebody else put into a small
        layout are listed, though, or a walk over the tree would stop at them for ever.
        """
        below = path[len(self.root) + 1 :] if path.startswith(self.root + "/") else ""
        for pattern in _FORMS[self.layout]:
            match = pattern.fullmatch(below)
            if match is not None:
                ledger_id = LedgerId(int("".join(match.groups())))
                if ledger_id <= ID_MAX and (pattern is _LONG) == self._is_long(ledger_id):
                    return ledger_id
        raise InvalidMetadataError(
            f"{path} is not the path of a ledger in the {self.layout.value} layout "
            f"below {self.root}"
        )

    def is_top_level(self, name: str) -> bool:
        """Whether a child of the root is a ledger (flat) or leads to ledgers (the others)."""
        return _TOP_LEVEL[self.layout].fullmatch(name) is not None

    def levels_below(self, name: str) -> int:
        """How many levels of directories, `name` included, come before the ledgers."""
        if self.layout is LayoutType.FLAT:
            return 0
        return 4 if len(name) == 3 else 2

    def parents_of(self, path: str) -> tuple[str, ...]:
        """The directories above a ledger, nearest first, without the root."""
        return _parents(path, stop=self.root)

    def _is_long(self, ledger_id: int) -> bool:
        return self.layout is LayoutType.LONG_HIERARCHICAL or (
            self.layout is LayoutType.HIERARCHICAL and ledger_id >= LONG_FORM_FROM
        )


@dataclass(frozen=True, slots=True)
class ClusterPaths:
    """Every other node of a cluster, by name."""

    root: str

    def __post_init__(self) -> None:
        check_root(self.root)

    @property
    def layout(self) -> str:
        return f"{self.root}/LAYOUT"

    @property
    def instance_id(self) -> str:
        return f"{self.root}/INSTANCEID"

    @property
    def available(self) -> str:
        return f"{self.root}/available"

    @property
    def readonly(self) -> str:
        return f"{self.root}/available/readonly"

    @property
    def cookies(self) -> str:
        return f"{self.root}/cookies"

    @property
    def disable_health_check(self) -> str:
        return f"{self.root}/disableHealthCheck"

    def registration(self, bookie_id: BookieId, *, readonly: bool = False) -> str:
        return f"{self.readonly if readonly else self.available}/{check_bookie_id(bookie_id)}"

    def cookie(self, bookie_id: BookieId) -> str:
        return f"{self.cookies}/{check_bookie_id(bookie_id)}"

    # ------------------------------------------------------------------ ledger ids

    @property
    def id_prefix_flat(self) -> str:
        """Sequential nodes of the flat layout; the counter is that of the root itself."""
        return f"{self.root}/{SEQUENTIAL_ID_PREFIX}"

    @property
    def idgen(self) -> str:
        return f"{self.root}/idgen"

    @property
    def id_prefix(self) -> str:
        return f"{self.idgen}/{SEQUENTIAL_ID_PREFIX}"

    @property
    def idgen_long(self) -> str:
        """Its existence is the switch to 63-bit ids."""
        return f"{self.root}/idgen-long"

    def high_bits(self, high: int) -> str:
        return f"{self.idgen_long}/{HIGH_BITS_PREFIX}{high:010d}"

    def id_prefix_long(self, high: int) -> str:
        return f"{self.high_bits(high)}/{SEQUENTIAL_ID_PREFIX}"

    # ------------------------------------------------------------------ re-replication

    @property
    def underreplication(self) -> str:
        return f"{self.root}/underreplication"

    @property
    def underreplication_layout(self) -> str:
        return f"{self.underreplication}/LAYOUT"

    @property
    def marks(self) -> str:
        return f"{self.underreplication}/ledgers"

    @property
    def locks(self) -> str:
        return f"{self.underreplication}/locks"

    @property
    def rereplication_disabled(self) -> str:
        return f"{self.underreplication}/disable"

    @property
    def lost_bookie_recovery_delay(self) -> str:
        return f"{self.underreplication}/lostBookieRecoveryDelay"

    @property
    def check_all_ledgers_ctime(self) -> str:
        return f"{self.underreplication}/checkallledgersctime"

    @property
    def placement_policy_check_ctime(self) -> str:
        return f"{self.underreplication}/placementpolicycheckctime"

    @property
    def replicas_check_ctime(self) -> str:
        return f"{self.underreplication}/replicascheckctime"

    @property
    def election(self) -> str:
        return f"{self.underreplication}/auditorelection"

    @property
    def vote_prefix(self) -> str:
        return f"{self.election}/{VOTE_PREFIX}"

    def mark(self, ledger_id: LedgerId) -> str:
        """Directories are the four 16-bit groups in hexadecimal, the name is decimal."""
        name = mark_name(ledger_id)
        digits = f"{ledger_id:016x}"
        groups = (digits[0:4], digits[4:8], digits[8:12], digits[12:16])
        return "/".join((self.marks, *groups, name))

    def mark_parents(self, ledger_id: LedgerId) -> tuple[str, ...]:
        """The four directories above a mark, nearest first."""
        return _parents(self.mark(ledger_id), stop=self.marks)

    def marked_ledger(self, path: str) -> LedgerId:
        """The id of the ledger whose mark is at `path`."""
        ledger_id = ledger_of_mark_name(path.rpartition("/")[2])
        if path != self.mark(ledger_id):
            raise InvalidMetadataError(f"{path} is not where the mark of ledger {ledger_id} goes")
        return ledger_id

    def lock(self, ledger_id: LedgerId) -> str:
        return f"{self.locks}/{mark_name(ledger_id)}"


def mark_name(ledger_id: LedgerId) -> str:
    """The name of a mark, and of the lock that goes with it."""
    if not 0 <= ledger_id <= ID_MAX:
        raise InvalidMetadataError(f"ledger id {ledger_id} is outside 0..2^63-1")
    return f"urL{ledger_id:010d}"


def ledger_of_mark_name(name: str) -> LedgerId:
    match = _MARK.fullmatch(name)
    if match is not None:
        ledger_id = LedgerId(int(match[1]))
        if ledger_id <= ID_MAX and mark_name(ledger_id) == name:
            return ledger_id
    raise InvalidMetadataError(f"{name!r} is not the name of a mark, want urL and a ledger id")


def sequence_of(path: str, prefix: str) -> int:
    """The number that the store appended to a sequential node; negative once it has overflowed."""
    name = path.rpartition("/")[2]
    digits = name[len(prefix) :] if name.startswith(prefix) else ""
    if _SEQUENCE.fullmatch(digits) is None:
        raise InvalidMetadataError(f"{path!r} is not a sequential node named {prefix}<number>")
    return int(digits)


def _parents(path: str, *, stop: str) -> tuple[str, ...]:
    parents: list[str] = []
    parent = path.rpartition("/")[0]
    while len(parent) > len(stop):
        parents.append(parent)
        parent = parent.rpartition("/")[0]
    return tuple(parents)
