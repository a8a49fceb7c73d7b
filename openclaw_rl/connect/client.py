"""What it takes to point a client at this server: words for a person, and edits of its own settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

#: Agents bring prompts of 12k to 20k tokens; with less context than this they must leave things out.
ROOMY = 32_768


@dataclass(frozen=True, slots=True)
class Server:
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

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of one file. Doing it twice is doing it once; text that is not there is empty."""

    path: Path
    apply: Callable[[str], str]
    remove: Callable[[str, str], str]
    """Takes out what ``apply`` put in, whatever else changed since; also gets the file as it was."""
    own_folder: bool = False
    """The file is ours alone, in a folder of ours: not shown line by line, nothing to keep of it."""


class Client(Protocol):
    """One program that people use."""

    title: str

    def explain(self, server: Server) -> str:
        """How to set it up by hand."""

    def edits(self, server: Server, home: Path) -> Sequence[Edit]:
        """What ``--write`` changes; none where there is no file to change."""
