"""Names of sources as the user writes them."""

from __future__ import annotations

import functools
import re
from typing import Any


_ROOT = re.compile(r"\b[LG]\['(\w+)'\]")
_IN_DICT = re.compile(r"\.(?:_modules|_parameters|_buffers|__dict__)\['([^']+)'\]")
_GETATTR = re.compile(r"\.__getattr__\('([^']+)'\)")
_NUMBER = re.compile(r"\.(\d+)(?![\w])")


@functools.lru_cache(maxsize=4096)
def readable(text: str) -> str:
    """``text`` with each name of a source, ``L['self']._modules['layers']._modules['0']``, as ``self.layers[0]``."""
    if "['" not in text:
        return text
    text = _ROOT.sub(r"\1", text)
    text = _GETATTR.sub(r".\1", _IN_DICT.sub(r".\1", text))
    return _NUMBER.sub(_as_index, text)


def _as_index(match: re.Match[str]) -> str:
    before = match.string[: match.start()]
    # A number that ends in digits is none of a name's.
    return match[0] if not before or before[-1].isdigit() or not _in_name(before) else f"[{match[1]}]"


def _in_name(before: str) -> bool:
    return before[-1].isalnum() or before[-1] in "_])"


def name_of_source(source: Any) -> str:
    """The name of a source, "" for None and for one that has none: a temporary of Dynamo's, for instance."""
    try:
        return "" if source is None else str(source.name)
    except NotImplementedError:
        return ""
