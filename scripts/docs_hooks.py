"""For `make docs`: links to files of the repository outside docs/ become code; the file has to exist.

Settings and routes are put into their pages, so that whoever adds one need not write it there.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)(#[^)\s]*)?\)")
#: What stands in a page -> the script that prints what belongs there.
_GENERATED = {"<!-- settings -->": "settings-reference", "<!-- routes -->": "api-reference"}


def on_page_markdown(markdown, page, **_):
    folder = (ROOT / "docs" / page.file.src_path).parent
    for mark, script in _GENERATED.items():
        if mark in markdown:
            markdown = markdown.replace(mark, _printed_by(script))

    def replace(match):
        target = (folder / match[2]).resolve()
        if target.is_relative_to(ROOT / "docs"):
            return match[0]
        if not target.exists():
            raise FileNotFoundError(f"{page.file.src_path} links to {match[2]}, which is not there")
        return f"`{match[1].strip('`')}`"

    return _LINK.sub(replace, markdown)


def _printed_by(script):
    """mkdocs has an environment of its own; the package is read in ours."""
    ours = ROOT / ".venv" / "bin" / "python"
    command = [ours if ours.exists() else sys.executable, ROOT / "scripts" / script]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
