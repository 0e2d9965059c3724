"""Clients that a bookie must put up with while others work, in a process of their own.

    python -m bench.bookie_crowd PORT LEDGER KIND

`idle` connections sit there; `deaf` ones ask for entries of the ledger and never read the answers;
`slow` ones read them in sips. READY is printed when all of them are there; the end of standard
input ends them.
"""

from __future__ import annotations

import select
import socket
import sys
from typing import Final

from wire.build_v2 import read_requests

IDLE_COUNT: Final = 1000
DEAF_COUNT: Final = 100
SLOW_COUNT: Final = 100
ENTRIES_ASKED: Final = 2000
SIP_BYTES: Final = 4096
SIP_SECONDS: Final = 0.02
COUNTS: Final = {"idle": IDLE_COUNT, "deaf": DEAF_COUNT, "slow": SLOW_COUNT}


def gather(port: int, ledger_id: int, kind: str) -> list[socket.socket]:
    requests = read_requests(range(ENTRIES_ASKED), ledger_id=ledger_id)
    crowd = []
    for _ in range(COUNTS[kind]):
        connection = socket.create_connection(("127.0.0.1", port))
        crowd.append(connection)
        if kind != "idle":
            connection.setblocking(False)
            connection.send(requests)
    return crowd


def main() -> None:
    port, ledger_id, kind = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    crowd = gather(port, ledger_id, kind)
    sys.stdout.write("READY\n")
    sys.stdout.flush()
    while not select.select([sys.stdin], [], [], SIP_SECONDS)[0]:
        if kind == "slow":
            for connection in select.select(crowd, [], [], 0)[0]:
                connection.recv(SIP_BYTES)
    for connection in crowd:
        connection.close()


if __name__ == "__main__":
    main()
