"""A hook of mkdocs: the pages at the root of the repository are pages of the site, and stay where they are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File


ROOT = Path(__file__).resolve().parents[1]
# A link to a file that is no page of the site: shown as the file's name.
_ELSEWHERE = re.compile(r"!?\[([^\]]*)\]\(((?!https?://)[^)#\s]+)(#[^)]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages, README.md excepted: docs/index.md stands in its place."""
    pages = {page.name for page in ROOT.glob("*.md")} - {"README.md"}
    for name in sorted(pages):
        text = _ELSEWHERE.sub(lambda link: link[0] if link[2] in pages else link[1], (ROOT / name).read_text())
        files.append(File.generated(config, name, content=text))
    return files
