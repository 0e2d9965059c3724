"""`python -m ledger_client`: ledgers from the command line.

python -m ledger_client --uri zk://127.0.0.1:2181/ledgers append < lines.txt
python -m ledger_client --uri zk://127.0.0.1:2181/ledgers read 17
"""

from __future__ import annotations

import sys

from ledger_client.command_line import main

if __name__ == "__main__":
    sys.exit(main())
