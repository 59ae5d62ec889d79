"""A Redis server for the tests of remote caches, without root: one that is installed, or Debian's package, unpacked.

python tools/redis_server.py        # prints the command that starts the server, after fetching it if need be
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path


FOLDER = Path(__file__).resolve().parents[1] / ".redis"
# Debian 12 has 7.0.15; any 7.0 will do. Debian's pool keeps only the latest security fix of a release.
PACKAGES = ("redis-server", "redis-tools", "libjemalloc2", "liblzf1")


class NoRedisError(RuntimeError):
    """There is no Redis server here, and none could be fetched; the message says why."""


def command(folder: Path = FOLDER) -> tuple[str, dict[str, str]]:
    """The server and the environment it needs.  Raises ``NoRedisError`` if it cannot be had."""
    if installed := shutil.which("redis-server"):
        return installed, {}
    server = folder / "usr" / "bin" / "redis-server"
    if not server.exists():
        _fetch(folder)
    libraries = sorted({str(path.parent) for path in folder.rglob("lib*.so.*")})
    return str(server), {"LD_LIBRARY_PATH": os.pathsep.join(libraries)}


def _fetch(folder: Path) -> None:
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        raise NoRedisError("no redis-server on the PATH, and no apt-get to fetch Debian's package with")
    with tempfile.TemporaryDirectory() as downloads:
        done = _download(downloads)
        if done.returncode != 0:
            # Without package lists, as in a fresh container. Needs root, which such a container has.
            subprocess.run(["apt-get", "update", "-qq"], capture_output=True, check=False)
            done = _download(downloads)
        if done.returncode != 0:
            raise NoRedisError(f"apt-get could not download {' '.join(PACKAGES)}: {done.stderr.strip()[-500:]}")
        unpacked = Path(downloads) / "unpacked"
        for package in sorted(Path(downloads).glob("*.deb")):
            subprocess.run(["dpkg", "-x", str(package), str(unpacked)], check=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(unpacked, folder, symlinks=True, dirs_exist_ok=True)


def _download(folder: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["apt-get", "download", *PACKAGES], cwd=folder, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    print(command()[0])
