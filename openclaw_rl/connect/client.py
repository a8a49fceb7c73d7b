"""What it takes to point a client at this server: instructions for the user, and edits to its settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

#: Agents' prompts have 12k to 20k tokens; with a smaller context than this they must be shortened.
ROOMY = 32_768


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where the server is, and what it serves."""

    url: str
    """Without the ``/v1``."""
    key: str
    model: str
    max_tokens: int
    """Of a reply."""
    context_length: int = 8192
    keeps_store_false: bool = True
    """Whether requests with ``store: false`` are kept and learned from."""
    off_the_record: bool = False
    """Whether nothing of the key's owner is kept."""

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"


@dataclass(frozen=True, slots=True)
class Edit:
    """A change to one file. Idempotent; a missing file counts as empty text."""

    path: Path
    apply: Callable[[str], str]
    remove: Callable[[str, str], str]
    """Removes what ``apply`` added, whatever else changed since; also gets the original text."""
    own_folder: bool = False
    """Whether the file is ours, in a folder of ours: then no diff is shown and no backup is kept."""


class Client(Protocol):
    """A program that can use this server."""

    title: str

    def explain(self, server: ServerAddress) -> str:
        """How to set it up by hand."""

    def edits(self, server: ServerAddress, home: Path) -> Sequence[Edit]:
        """What ``--write`` changes; empty if there is no file to change."""
