"""The replication protocol under faults, from one seed.

Two rings. The inner one runs the pure cores against bookies, a network and a store that are small
models; it is fast, so it sees many schedules. The outer one runs the real engine, server, client
and autorecovery on memory files, memory pipes and a virtual clock. Both tell an omniscient
history, which one checker per invariant watches.
"""
