"""Wishes about a reply's form that can be read, checked and met without anybody's judgement."""

from openclaw_rl.forms.reading import Reading, read

__all__ = ["Reading", "read"]
