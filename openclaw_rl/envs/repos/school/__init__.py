"""A school."""
