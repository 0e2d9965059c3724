"""Where bookies stand: network locations such as `/eu/rack-7`, told apart by their leading parts.

What the parts mean is the policy's affair: region and rack, zone and upgrade domain, or a rack
alone. A bookie whose place is not known stands at the default location, together with all others
of its kind: they count as one fault domain, which is the safe reading.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from wire.errors import BadRequestError
from wire.types import BookieId

Location: TypeAlias = tuple[str, ...]

#: The rack of everything that nobody placed, as Apache's clients write it.
DEFAULT_RACK: Final[Location] = ("default-rack",)


def parse_location(text: str) -> Location:
    """`/eu/rack-7` as its parts. BadRequestError says what is wrong with anything else."""
    parts = text.split("/")
    if len(parts) < 2 or parts[0] or not all(parts[1:]) or text != text.strip():
        raise BadRequestError(
            f"{text!r} is not a network location: write it as /rack or /region/rack"
        )
    return tuple(parts[1:])


def show_location(location: Location) -> str:
    return "/" + "/".join(location)


class Locations:
    """The places of bookies as they are known now; it may learn more while policies use it."""

    def __init__(
        self, known: Mapping[BookieId, Location] | None = None, default: Location = DEFAULT_RACK
    ) -> None:
        self._known = dict(known or {})
        self.default = default

    def of(self, bookie_id: BookieId) -> Location:
        return self._known.get(bookie_id, self.default)

    @property
    def bookies(self) -> frozenset[BookieId]:
        """Those whose place is known."""
        return frozenset(self._known)

    def is_known(self, bookie_id: BookieId) -> bool:
        return bookie_id in self._known

    def learn(self, found: Mapping[BookieId, Location]) -> None:
        self._known.update(found)

    def forget(self, bookie_id: BookieId) -> None:
        self._known.pop(bookie_id, None)
