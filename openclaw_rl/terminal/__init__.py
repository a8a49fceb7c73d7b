"""The running server from a terminal: what it does, what it said, and a chat with it. Only the public API."""
