"""Evaluations, one file or folder each, run from the command line; none needs a running server."""
