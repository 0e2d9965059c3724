"""The decisions of the ledger client: events in, commands out, nothing awaited.

No clock, no sockets, no chance of their own: time comes in as a number of seconds on any clock
that does not run backwards, bookies to choose from come in as values. A shell carries a core's
commands out, in the order given, and tells it what came of them.
"""
