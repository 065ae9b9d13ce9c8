"""One module a command: each has `register(app)` and imports what is heavy inside the command itself."""
