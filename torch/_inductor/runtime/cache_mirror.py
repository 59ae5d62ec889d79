"""A cache folder that may be read but not written: what is in it is used, and what is new goes to a folder of our own.

Stock writes locks, kernels and entries into the folder also when all it needs is there, and fails where it may not.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile


log = logging.getLogger(__name__)

# A folder with more files than this is not mirrored; the process begins with an empty one.
MAX_MIRRORED_FILES = 50_000
# Folders that a lookup or a compile writes to.
_WRITTEN = ("aotautograd", "fxgraph", "locks", "regions")
_mirrors: dict[str, str] = {}


def usable(folder: str) -> str:
    """``folder`` if it can be written to, or else a folder that mirrors it until the process ends, with one warning."""
    found = _mirrors.get(folder)
    if found is None:
        found = folder if _writable(folder) else _mirror(folder)
        # A mirror is asked for by its own name from now on, in this process and in its workers.
        _mirrors[folder] = _mirrors[found] = found
    return found


def _writable(folder: str) -> bool:
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError:
        return False
    paths = [folder, *(os.path.join(folder, name) for name in _WRITTEN)]
    return all(os.access(path, os.W_OK | os.X_OK) for path in paths if os.path.exists(path))


def _mirror(folder: str) -> str:
    mirror = tempfile.mkdtemp(prefix="torchinductor_mirror_")
    atexit.register(_remove, mirror, os.getpid())
    files = 0
    for path, _, names in os.walk(folder):
        target = os.path.join(mirror, os.path.relpath(path, folder))
        os.makedirs(target, exist_ok=True)
        files += len(names)
        if files > MAX_MIRRORED_FILES:
            break
        for name in names:
            # Writers put a new file under the name, so a link is replaced and never written through. Locks are
            # opened in place.
            if not name.endswith(".lock"):
                os.symlink(os.path.join(path, name), os.path.join(target, name))
    log.warning("the cache folder %s cannot be written to; what is compiled is kept in %s", folder, mirror)
    return mirror


def _remove(mirror: str, owner: int) -> None:
    # Forked workers end before the process that uses the mirror.
    if os.getpid() == owner:
        shutil.rmtree(mirror, ignore_errors=True)
