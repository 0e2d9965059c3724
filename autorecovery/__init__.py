"""Autorecovery: an auditor that finds what lacks copies, and workers that restore them."""
