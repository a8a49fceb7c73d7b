"""One line of JSON per step, in ``metrics.jsonl`` of the data folder."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path


class JsonlSink:
    def __init__(self, home: Path) -> None:
        self._path = home / "metrics.jsonl"

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        line = json.dumps({"step": step, "at": time.time(), **metrics})
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def close(self) -> None:
        """Nothing to do: the file is closed after every line."""
