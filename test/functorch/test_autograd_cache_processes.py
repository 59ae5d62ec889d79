"""AOTAutogradCache between processes: a folder, a Redis server, and folders in which something is wrong."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import os
import pickle
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from testing import processes


BLOCKS = 16
PR_CAPBSET_DROP = 24
CAPABILITIES_THAT_IGNORE_MODES = (1, 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH


def start(folder: Path, *arguments: object, **options) -> subprocess.Popen[str] | processes.Forked:
    """A program of blocks.  What torch reads when it is imported, and what comes before that, needs a new process."""
    if options:
        return processes.start("cached_compile", folder, *arguments, **options)
    return processes.fork("cached_compile", folder, *arguments)


def outcome(process: subprocess.Popen[str] | processes.Forked) -> tuple[dict[str, int], list[str]]:
    """What the cache counted, and the warnings: one line each."""
    told, warnings = processes.finish(process)
    return told["cache"], warnings


def run(folder: Path, *arguments: object, **options) -> tuple[dict[str, int], list[str]]:
    return outcome(start(folder, *arguments, **options))


ONE_MISS = {"hit": BLOCKS - 1, "miss": 1, "bypass": 0}
ALL_HIT = {"hit": BLOCKS, "miss": 0, "bypass": 0}


def test_like_blocks_are_compiled_once(tmp_path):
    assert run(tmp_path, BLOCKS) == (ONE_MISS, [])
    assert run(tmp_path, BLOCKS) == (ALL_HIT, [])


def test_like_blocks_in_training(tmp_path):
    """A backward is compiled when it is first needed. Then the entry is complete, and other processes find it."""
    first, warnings = run(tmp_path, BLOCKS, "train", "early")
    assert (first, warnings) == (ONE_MISS, [])
    assert run(tmp_path, BLOCKS, "train", "early") == (ALL_HIT, [])


@pytest.fixture
def redis_port(tmp_path) -> Iterator[int]:
    assert importlib.util.find_spec("redis"), "the Python client of Redis is missing: pip install -r requirements.txt"
    spec = importlib.util.spec_from_file_location("redis_server", processes.REPO / "tools" / "redis_server.py")
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    try:
        program, env = tool.command()
    except tool.NoRedisError as e:
        pytest.skip(f"no Redis server can be had here: {e}")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = {"port": port, "bind": "127.0.0.1", "dir": tmp_path, "save": "", "appendonly": "no"}
    command = [program, *(str(word) for name, value in options.items() for word in (f"--{name}", value))]
    server = subprocess.Popen(command, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        for _ in range(100):
            assert server.poll() is None, server.stdout and server.stdout.read()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.1)
        yield port
    finally:
        server.terminate()
        server.wait()


def test_like_blocks_through_redis(tmp_path, redis_port):
    import redis

    env = {
        "TORCHINDUCTOR_REDIS_PORT": str(redis_port),
        "TORCHINDUCTOR_REDIS_HOST": "127.0.0.1",
        "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE": "1",
        "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE": "1",
    }
    assert run(tmp_path / "here", BLOCKS, **env)[0] == ONE_MISS
    stored = [key.decode() for key in redis.Redis("127.0.0.1", redis_port).keys()]
    assert sum("autograd" in key for key in stored) == 1, stored
    # Another folder, as on another machine.
    assert run(tmp_path / "there", BLOCKS, **env)[0] == ALL_HIT
    # Garbage in the place of the entry.
    for key in stored:
        redis.Redis("127.0.0.1", redis_port).set(key, b'{"data": "bm90IGFuIGVudHJ5", "time_taken_ms": 1}')
    counts, warnings = run(tmp_path / "third", 2, **env)
    assert counts == {"hit": 1, "miss": 1, "bypass": 0}
    assert len([w for w in warnings if "cannot be read" in w and "AOT" in w]) == 1, warnings


def test_processes_that_write_one_folder(tmp_path):
    processes = [start(tmp_path, 4) for _ in range(4)]
    for process in processes:
        counts, warnings = outcome(process)
        assert counts["hit"] + counts["miss"] == 4 and not counts["bypass"] and not warnings
    assert run(tmp_path, 4)[0] == {"hit": 4, "miss": 0, "bypass": 0}


@pytest.fixture(scope="module")
def filled(tmp_path_factory) -> Path:
    """A cache folder after a run of two blocks."""
    folder = tmp_path_factory.mktemp("filled")
    assert run(folder, 2)[0] == {"hit": 1, "miss": 1, "bypass": 0}
    return folder


@functools.cache
def _garbage() -> dict[str, bytes]:
    return {"garbage": b"not a pickle", "empty": b"", "another_pickle": pickle.dumps({"a": 1})}


@pytest.mark.parametrize("damage", ["truncated", "garbage", "empty", "another_pickle"])
def test_damaged_entry(tmp_path, filled, damage):
    shutil.copytree(filled, tmp_path, dirs_exist_ok=True)
    (entry,) = (path for path in (tmp_path / "aotautograd").rglob("*") if path.is_file() and path.name[0] != ".")
    entry.write_bytes(_garbage().get(damage, entry.read_bytes()[:200]))
    counts, warnings = run(tmp_path, 2)
    # The program is compiled anew and saved beside the damaged entry, which is reported once.
    assert counts == {"hit": 1, "miss": 1, "bypass": 0}
    assert len(warnings) == 1 and "cannot be read" in warnings[0], warnings
    assert run(tmp_path, 2)[0] == {"hit": 2, "miss": 0, "bypass": 0}


def test_lost_kernels(tmp_path, filled):
    """The entry is there, and what it refers to is not."""
    shutil.copytree(filled, tmp_path, dirs_exist_ok=True)
    for path in tmp_path.rglob("*"):
        if path.is_file() and "aotautograd" not in path.parts:
            path.unlink()
    assert run(tmp_path, 2) == ({"hit": 1, "miss": 1, "bypass": 0}, [])


def obey_modes() -> None:
    """In a process of root's: file modes count for it as for anybody."""
    libc = ctypes.CDLL(None)
    for capability in CAPABILITIES_THAT_IGNORE_MODES:
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


@pytest.mark.parametrize("warm", [True, False])
def test_read_only_folder(tmp_path, filled, warm):
    folder = tmp_path / "cache"
    folder.mkdir()
    if warm:
        shutil.copytree(filled, folder, dirs_exist_ok=True)
    places = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    for place in places:
        place.chmod(0o555)
    before = sorted(folder.rglob("*"))
    try:
        counts, warnings = run(folder, 2, prepare=obey_modes)
        assert counts == ({"hit": 2, "miss": 0, "bypass": 0} if warm else {"hit": 1, "miss": 1, "bypass": 0})
        assert len(warnings) == 1 and "cannot be written to" in warnings[0], warnings
        assert sorted(folder.rglob("*")) == before
    finally:
        for place in places:
            place.chmod(0o755)


def test_folder_of_another_user(tmp_path, filled):
    """What may not even be read is as if it were not there, and is left as it is."""
    folder = tmp_path / "cache"
    shutil.copytree(filled, folder)
    before = sorted(folder.rglob("*"))
    folder.chmod(0)
    try:
        counts, warnings = run(folder, 2, prepare=obey_modes)
    finally:
        folder.chmod(0o755)
    assert counts == {"hit": 1, "miss": 1, "bypass": 0}
    assert len(warnings) == 1 and "cannot be written to" in warnings[0], warnings
    assert sorted(folder.rglob("*")) == before
