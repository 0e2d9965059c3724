"""Real processes under real faults: what it does and how to run it is in docs/reliability.md."""
