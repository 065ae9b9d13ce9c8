"""Whole-answer speculation: a small model writes an answer, a large one judges how much of it to keep."""
