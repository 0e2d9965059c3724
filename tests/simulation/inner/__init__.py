"""The inner ring: real cores, everything around them modelled."""
