"""Standalone scripts that are copied into a sandbox and run there without this package."""
