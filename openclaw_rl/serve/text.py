"""Request bodies with well-formed text, which can be encoded and stored."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, model_validator

from openclaw_rl.text import well_formed


class WellFormed(BaseModel):
    """A request body whose text is repaired before validation."""

    @model_validator(mode="before")
    @classmethod
    def _well_formed(cls, data: Any) -> Any:
        try:
            return well_formed(data)
        except RecursionError:
            raise ValueError("nested too deeply; flatten it") from None
