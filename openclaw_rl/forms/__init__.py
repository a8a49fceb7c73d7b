"""Wishes about a reply's form that can be read, checked and met without anybody's judgement."""

from openclaw_rl.forms.reading import NOTHING_READ, Reading, read

__all__ = ["NOTHING_READ", "Reading", "read"]
