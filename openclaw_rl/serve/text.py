"""Request bodies with well-formed text, which can be encoded and stored."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, model_validator

from openclaw_rl.text import well_formed

#: Objects, lists and keys of a body: each costs more time on the event loop than a thousand characters do.
MAX_SIZE = 100_000


class WellFormed(BaseModel):
    """A request body whose text is repaired before validation."""

    @model_validator(mode="before")
    @classmethod
    def _well_formed(cls, data: Any) -> Any:
        if not fits(data):
            raise ValueError(f"more than {MAX_SIZE:,} objects, lists and keys; send fewer")
        try:
            return well_formed(data)
        except RecursionError:
            raise ValueError("nested too deeply; flatten it") from None


def fits(value: Any) -> bool:
    """Whether it is no larger than allowed; the rest of what is larger is not looked at."""
    size, waiting = 0, [value]
    while waiting and size <= MAX_SIZE:
        one = waiting.pop()
        if isinstance(one, dict):
            size += 1 + len(one)
            one = one.values()
        elif isinstance(one, list):
            size += 1
        else:
            continue
        waiting += [each for each in one if isinstance(each, dict | list)]
    return size <= MAX_SIZE
