"""Stores as released formats left them, and how they were made."""
