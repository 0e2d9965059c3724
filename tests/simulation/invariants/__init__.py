"""One small file per invariant of the replication protocol, numbered as in docs/faults.md.

I24, that everything ends once the cluster is whole, is asked by the run itself. I21 and I22 speak
of the auditor and its workers, which the outer ring has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.invariants.i01 import I1
from tests.simulation.invariants.i02 import I2
from tests.simulation.invariants.i03 import I3
from tests.simulation.invariants.i04 import I4
from tests.simulation.invariants.i05 import I5
from tests.simulation.invariants.i06 import I6
from tests.simulation.invariants.i07 import I7
from tests.simulation.invariants.i08 import I8
from tests.simulation.invariants.i09 import I9
from tests.simulation.invariants.i10 import I10
from tests.simulation.invariants.i11 import I11
from tests.simulation.invariants.i12 import I12
from tests.simulation.invariants.i13 import I13
from tests.simulation.invariants.i14 import I14
from tests.simulation.invariants.i15 import I15
from tests.simulation.invariants.i16 import I16
from tests.simulation.invariants.i17 import I17
from tests.simulation.invariants.i18 import I18
from tests.simulation.invariants.i19 import I19
from tests.simulation.invariants.i20 import I20
from tests.simulation.invariants.i21 import I21
from tests.simulation.invariants.i22 import I22
from tests.simulation.invariants.i23 import I23

if TYPE_CHECKING:
    from tests.simulation.inner.world import World
    from tests.simulation.invariants.checker import Checker

CHECKERS: tuple[type[Checker], ...] = (
    I1,
    I2,
    I3,
    I4,
    I5,
    I6,
    I7,
    I8,
    I9,
    I10,
    I11,
    I12,
    I13,
    I14,
    I15,
    I16,
    I17,
    I18,
    I19,
    I20,
    I23,
)


#: Of the ring that has autorecovery.
AUTORECOVERY_CHECKERS: tuple[type[Checker], ...] = (I21, I22)


def checkers_for(world: World, *, autorecovery: bool = False) -> list[Checker]:
    wanted = CHECKERS + AUTORECOVERY_CHECKERS if autorecovery else CHECKERS
    return [checker(world) for checker in wanted]
