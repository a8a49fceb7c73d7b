"""Reads tables of regular expressions from text files: ``[section]`` lines, then one expression per line.

``{NAME}``, in capitals, expands to the alternatives of the section ``[NAME]``.
Lines that begin with ``#`` are comments.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_SECTION = re.compile(r"\[([A-Za-z_]+)\]")


@cache
def read_patterns(name: str, package: str) -> dict[str, list[str]]:
    """The sections of ``<name>.txt`` in a package, in order."""
    sections: dict[str, list[str]] = {}
    current: list[str] = []
    for line in (files(package) / f"{name}.txt").read_text("utf-8").splitlines():
        if found := _SECTION.fullmatch(line):
            current = sections.setdefault(found[1], [])
        elif line.strip() and not line.startswith("#"):
            current.append(line)
    macros = {key: f"(?:{'|'.join(forms)})" for key, forms in sections.items() if key.isupper()}
    return {key: [_expand(form, macros) for form in forms] for key, forms in sections.items()}


def _expand(form: str, macros: dict[str, str]) -> str:
    for key, alternatives in macros.items():
        form = form.replace("{" + key + "}", alternatives)
    return form
