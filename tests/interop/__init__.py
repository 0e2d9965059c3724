"""Exchange with Apache BookKeeper's own Java client. Needs Maven once, for the jars."""
