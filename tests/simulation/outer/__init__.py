"""The outer ring: the real bookie, client and metadata code on memory and a virtual clock."""
