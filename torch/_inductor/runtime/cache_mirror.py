"""A read-only cache folder: its entries are used, and new entries go to a mirror.

Stock writes locks, kernels and entries into the folder even if everything it needs is there, and fails if the folder is
read-only.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile


log = logging.getLogger(__name__)

# If the folder has more files, mirroring stops, and the rest is compiled anew.
MAX_MIRRORED_FILES = 50_000
# Subfolders that a lookup or a compile writes to.
_WRITTEN = ("aotautograd", "fxgraph", "locks", "regions")
_mirrors: dict[str, str] = {}


def usable(folder: str) -> str:
    """``folder`` if it is writable; otherwise a folder that mirrors it until the process ends, with one warning."""
    found = _mirrors.get(folder)
    if found is None:
        found = folder if _writable(folder) else _mirror(folder)
        # From now on, this process and its workers use the mirror by its own name.
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
            # Writers replace files instead of writing into them, so they replace a link and never write through it.
            # Locks are opened in place.
            if not name.endswith(".lock"):
                os.symlink(os.path.join(path, name), os.path.join(target, name))
    log.warning("the cache folder %s cannot be written to; what is compiled is kept in %s", folder, mirror)
    return mirror


def _remove(mirror: str, owner: int) -> None:
    # A forked worker must not remove the mirror when it ends.
    if os.getpid() == owner:
        shutil.rmtree(mirror, ignore_errors=True)
