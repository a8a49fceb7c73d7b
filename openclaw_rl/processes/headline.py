"""One sentence says whether it learns, and what: on the dashboard's Home and in ``openclaw-rl status``.

A pure function of what the ledgers say. Wishes are in the person's own words, in quotation marks.
"""

from __future__ import annotations

from collections.abc import Sequence

from openclaw_rl.types import BASE_VERSION, Json

_STOPPED = "It is not learning at the moment: the learning process has stopped. Replies continue as before."
_NOTHING = "Nothing to learn from yet. Talk to it and tell it how to answer better."
_STAGES = {"training": "a new version is being trained", "candidate": "a new version is being checked"}
_FAILED = "not learned yet, since the last version failed its checks"
_MOST = 3


def headline(
    wishes: Sequence[Json], first: Json, *, serving: int, stage: str | None, is_running: bool = True
) -> str:
    """``first``: first replies by version (``satisfaction.py``); ``stage``: of the version being made."""
    if not is_running:
        return _STOPPED
    parts = [
        _part(wishes, "learned", "works now", "work now"),
        _first_replies(first, serving),
        _part([w for w in wishes if not w["reason"]], "not yet", "is being learned", "are being learned"),
        _part([w for w in wishes if w["reason"]], "not yet", f"is {_FAILED}", f"are {_FAILED}"),
        _part(wishes, "not possible", "is not possible with this model", "are not possible with this model"),
        _STAGES.get(stage or "", ""),
    ]
    said = "; ".join(part for part in parts if part)
    return f"Learning: {said}." if said else _NOTHING


def _part(wishes: Sequence[Json], state: str, one: str, several: str) -> str:
    names = [f"“{wish['text'].strip().rstrip('.')}”" for wish in wishes if wish["state"] == state][:_MOST]
    return f"{', '.join(names)} {one if len(names) == 1 else several}" if names else ""


def _first_replies(first: Json, serving: int) -> str:
    """Those of earlier versions say nothing about the one that has just taken over."""
    good, of = first["last"]["good"], first["last"]["of"]
    if not of:
        return ""
    is_new = serving > BASE_VERSION and all(row["version"] < serving for row in first["versions"])
    before = f"before version {serving}, " if is_new else ""
    if of == 1:
        return f"{before}the only first reply you reacted to was {'right' if good else 'wrong'}"
    return f"{before}{good} of your last {of} first replies were right"
