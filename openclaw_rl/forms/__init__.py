"""Wishes about a reply's form that code can read, check and meet, without a judge."""

from openclaw_rl.forms.reading import NOTHING_READ, Reading, read

__all__ = ["NOTHING_READ", "Reading", "read"]
