"""For `make docs`: links to files of the repository outside docs/ become code; the file has to exist.

The tables of settings are put into docs/settings.md, so that whoever adds a setting need not write it there.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)(#[^)\s]*)?\)")
_SETTINGS = "<!-- settings -->"


def on_page_markdown(markdown, page, **_):
    folder = (ROOT / "docs" / page.file.src_path).parent
    if _SETTINGS in markdown:
        markdown = markdown.replace(_SETTINGS, _reference())

    def replace(match):
        target = (folder / match[2]).resolve()
        if target.is_relative_to(ROOT / "docs"):
            return match[0]
        if not target.exists():
            raise FileNotFoundError(f"{page.file.src_path} links to {match[2]}, which is not there")
        return f"`{match[1].strip('`')}`"

    return _LINK.sub(replace, markdown)


def _reference():
    """mkdocs has an environment of its own; the settings are read in ours."""
    ours = ROOT / ".venv" / "bin" / "python"
    command = [ours if ours.exists() else sys.executable, ROOT / "scripts" / "settings-reference"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
