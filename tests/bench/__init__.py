"""The parts of the benchmarks that decide something."""
