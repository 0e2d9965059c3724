"""Decisions of autorecovery: values in, values out; no clock, no waiting."""
