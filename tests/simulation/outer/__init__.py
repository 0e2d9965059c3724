"""The outer ring: real bookies, clients and autorecovery on memory and a virtual clock."""
