"""Hostile bytes for everything that reads bytes: parsers one by one, and a live bookie."""
