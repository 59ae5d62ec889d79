"""Overlay of torch._inductor.codecache: reports an unreadable entry once, in one line, and describes keys for readers.

Stock describes each attribute of a graph, with a hash of it, whenever a key is made. Only its logs read that.
"""

from __future__ import annotations

import base64
import logging
import os
import pickle
from collections.abc import Generator
from typing import Any

from torch._inductor.codecache import FxGraphCachePickler, log
from torch._logging._internal import trace_log

from torch_regions.overlay import replaces, stock


# Unreadable entries, each of which is reported once.
_unreadable: set[str] = set()


@replaces("GuardedCache.iterate_over_candidates")
@classmethod
def iterate_over_candidates(
    cls: Any, local: bool, remote_cache: Any, key: str
) -> Generator[tuple[Any, bytes, bool], None, None]:
    """Entries of a key with their bytes, and whether they are local. Unreadable entries are skipped."""
    folder = cls._get_tmp_dir_for_key(key)
    if local and os.path.isdir(folder):
        for name in sorted(os.listdir(folder)):
            # A file that another process is writing has a name with a leading dot.
            if name.startswith("."):
                continue
            path = os.path.join(folder, name)
            try:
                with open(path, "rb") as file:
                    content = file.read()
                entry = _entry(content)
            except FileNotFoundError:
                continue  # removed since the folder was listed
            except Exception as error:
                _say(path, error)
                continue
            yield entry, content, True
    if remote_cache:
        try:
            found = remote_cache.get(key)
            if found is None:
                return
            content = base64.b64decode(found["data"])
            entry = _entry(content)
        except Exception as error:
            _say(f"{key} in {type(remote_cache).__name__}", error)
            return
        yield entry, content, False


@replaces("FxGraphCachePickler.debug_lines")
def debug_lines(self: Any, inp: Any) -> list[str]:
    # AOTAutograd's pickler is asked only where its own log is read.
    if type(self) is FxGraphCachePickler and not trace_log.handlers and not log.isEnabledFor(logging.DEBUG):
        return []
    lines: list[str] = stock("torch._inductor.codecache:FxGraphCachePickler.debug_lines")(self, inp)
    return lines


def _entry(content: bytes) -> Any:
    """The entry that was stored. Raises if ``content`` is not an entry."""
    entry = pickle.loads(content)
    if not hasattr(entry, "guards_expr"):
        raise TypeError(f"{type(entry).__name__} is no entry of a compile cache")
    return entry


def _say(where: str, error: Exception) -> None:
    if where not in _unreadable:
        _unreadable.add(where)
        log.warning("cache entry %s cannot be read, and is compiled anew: %s: %s", where, type(error).__name__, error)
        log.debug("why it cannot be read", exc_info=error)
