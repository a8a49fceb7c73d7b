"""Whose policy answers a request: a user has a scope, a scope has a version.

The ledger, the engine and the views are keyed by scope; only this module decides a user's scope.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from openclaw_rl.types import EVERYONE, Scope
from openclaw_rl.users import Users

_FORM = re.compile(r"everyone|(user|group|env):[^\s:]+")


class ScopeOf(Protocol):
    def of(self, user: str) -> Scope: ...


@dataclass(frozen=True, slots=True)
class PolicyScopes:
    """``--policy-scope``, evaluated for every request, since keys and groups may change at any time."""

    mode: str
    owner: str
    """Keeps the policy from before there was a second key, since it was trained on the owner's turns only."""
    users: Users
    names: Callable[[], Collection[str]]
    """All users with a key."""

    def of(self, user: str) -> Scope:
        if environment := self.users.of(user).environment:
            return f"env:{environment}"
        mode = self.mode
        if mode == "auto":
            people = [name for name in self.names() if not self.users.of(name).environment]
            mode = "user" if len(people) > 1 else "everyone"
        if mode == "everyone":
            return EVERYONE
        if group := self.users.of(user).group:
            return f"group:{group}"
        return EVERYONE if mode == "group" or user == self.owner else f"user:{user}"

    def is_shared(self, scope: Scope) -> bool:
        """Whether it serves more than one key; False for environments."""
        return not is_environment(scope) and sum(self.of(name) == scope for name in self.names()) > 1


@dataclass(frozen=True, slots=True)
class Scopes:
    """A fixed table such as ``{"ann": "user:ann"}``; users without an entry share everyone's policy."""

    by_user: Mapping[str, Scope] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for scope in self.by_user.values():
            check_scope(scope)

    def of(self, user: str) -> Scope:
        return self.by_user.get(user, EVERYONE)


#: Stands for any environment's scope.
ENVIRONMENTS: Scope = "env:*"


def is_environment(scope: Scope) -> bool:
    """Whether its policy learns from episodes in an environment, not from conversations."""
    return scope.startswith("env:")


def check_scope(scope: str) -> Scope:
    """The scope unchanged; ValueError with the valid forms if it is none."""
    if not _FORM.fullmatch(scope):
        raise ValueError(f"{scope!r} is no scope; use everyone, user:NAME, group:NAME or env:NAME")
    return scope
