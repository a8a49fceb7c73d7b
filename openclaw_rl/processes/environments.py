"""Views of environments for the dashboard: attempts in the ledger, logs written by ``train``, and replays.

``train`` writes ``train/NAME/log.jsonl`` and ``train/NAME/replays/SESSION.json`` in the data folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from openclaw_rl.capture.policy_ledger import PolicyLedger
from openclaw_rl.capture.rollouts import view_environments
from openclaw_rl.evals.env.interval import interval
from openclaw_rl.types import Json, Scope

_SESSION, _NAME = re.compile(r"env-[0-9a-f]{32}"), re.compile(r"[\w@-][\w.@-]*")
#: How much of a log is read, from its end.
_MOST_BYTES = 4_000_000


def list_environments(home: Path, policies: PolicyLedger, only: Scope | None) -> list[Json]:
    """Each with its share of solved attempts, its held-out evaluations, and its agents' utilisation."""
    found = []
    for each in view_environments(policies, only):
        rows = _log(home, each["scope"])
        runs = [row for row in rows if row["type"] == "run"]
        seconds = sum(row["seconds"] * row["parallel"] for row in runs)
        found.append(
            {
                **each,
                **_interval(each),
                "versions": [{**version, **_interval(version)} for version in each["versions"]],
                "evaluations": [_evaluation(row) for row in rows if row["type"] == "evaluation"],
                "utilisation": sum(row["busy"] for row in runs) / seconds if seconds else None,
            }
        )
    return found


def read_replay(home: Path, name: str, session_id: str) -> Json | None:
    """An episode's replay; None if there is none."""
    if not _SESSION.fullmatch(session_id) or not _NAME.fullmatch(name):
        return None
    try:
        found: Json = json.loads((home / "train" / name / "replays" / f"{session_id}.json").read_text())
    except OSError:
        return None
    return found


def sweep_replays(home: Path, is_known: Callable[[str], bool]) -> None:
    """Delete the replays of sessions that no longer exist."""
    for path in home.glob("train/*/replays/env-*.json"):
        if not is_known(path.stem):
            path.unlink(missing_ok=True)


def _interval(counted: Json) -> Json:
    low, high = interval(counted["solved"], counted["of"])
    return {"low": low, "high": high}


def _evaluation(row: Json) -> Json:
    return {name: row[name] for name in ("at", "groups", "version", "solved", "of", "low", "high")}


def _log(home: Path, scope: Scope) -> list[Json]:
    """Skips incomplete lines."""
    path = home / "train" / scope.removeprefix("env:") / "log.jsonl"
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _MOST_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return [row for row in found if isinstance(row, dict) and "type" in row]
