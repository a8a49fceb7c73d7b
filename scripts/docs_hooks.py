"""For `make docs`: links to files of the repository outside docs/ become code; the file has to exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown, page, **_):
    folder = (ROOT / "docs" / page.file.src_path).parent

    def replace(match):
        target = (folder / match[2]).resolve()
        if target.is_relative_to(ROOT / "docs"):
            return match[0]
        if not target.exists():
            raise FileNotFoundError(f"{page.file.src_path} links to {match[2]}, which is not there")
        return f"`{match[1].strip('`')}`"

    return _LINK.sub(replace, markdown)
