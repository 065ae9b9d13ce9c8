"""The target: everything that touches weights."""
