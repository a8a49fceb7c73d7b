"""Whose policy answers a request. One table in one place: a user has a scope, a scope has a version.

Without entries everybody shares one policy. The ledger, the engine and the views are keyed by scope already,
so giving somebody a policy of their own is an entry here, such as ``{"ann": "user:ann"}``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from openclaw_rl.types import EVERYONE, Scope

_FORM = re.compile(r"everyone|(user|group|env):[^\s:]+")


@dataclass(frozen=True, slots=True)
class Scopes:
    by_user: Mapping[str, Scope] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for scope in self.by_user.values():
            check_scope(scope)

    def of(self, user: str) -> Scope:
        return self.by_user.get(user, EVERYONE)


def check_scope(scope: str) -> Scope:
    """The same, or a ValueError that says what a scope looks like."""
    if not _FORM.fullmatch(scope):
        raise ValueError(f"{scope!r} is no scope; use everyone, user:NAME, group:NAME or env:NAME")
    return scope
