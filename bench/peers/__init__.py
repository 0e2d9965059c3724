"""Apache BookKeeper beside ours: its jars, its bookies and ours as processes, clusters of both.

Shared by the benchmarks and by the interop tests.
"""
