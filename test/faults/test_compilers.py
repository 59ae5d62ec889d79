"""A C++ compiler that is missing, fails, is killed, slow or hangs, and a cache folder that goes or fills up under way."""

from __future__ import annotations

import os

import pytest
from testing import vectors
from testing.overlay_tools import run_code


# In forked children, so that Inductor is imported once. Each prints what became of the compile, then of the next one.
PROGRAM = """
import json, os, resource, shutil, signal, sys, tempfile, threading, time, torch, torch._dynamo, torch._inductor.compile_fx
from torch._inductor import codecache, config, cpp_builder, cpu_vec_isa
FLAG = os.environ["FLAG"] == "1"
def program(x, w):
    for _ in range(3):
        x = torch.nn.functional.gelu(x @ w).softmax(-1) + x.sin()
    return x
def compiled():
    torch._dynamo.reset()
    x, w = torch.ones(4, 4), torch.ones(4, 4)
    try:
        with torch._dynamo.config.patch(use_graph_deduplication=FLAG):
            found = torch.compile(program)(x, w)
    except Exception as error:
        return type(error).__name__
    return torch.allclose(found, program(x, w))
def script(text):
    path = tempfile.mktemp()
    with open(path, "w") as stream:
        stream.write("#!/bin/sh\\n" + text)
    os.chmod(path, 0o755)
    return path
def with_compiler(path):
    with config.patch({"cpp.cxx": (None, path)}):
        return compiled()
def interrupted(signum, frame):
    raise KeyboardInterrupt
def hanging():
    # Until Ctrl-C, which the compiler gets too, as a process group of a terminal does.
    signal.signal(signal.SIGALRM, interrupted)
    pids = tempfile.mktemp()
    def watch():
        while not os.path.exists(pids):
            time.sleep(0.05)
        signal.alarm(1)
    threading.Thread(target=watch, daemon=True).start()
    try:
        return with_compiler(script(f'echo $$ > {pids}; exec sleep 600'))
    except KeyboardInterrupt:
        with open(pids) as stream:
            pid = int(stream.read())
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        return "KeyboardInterrupt"
def full():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        return compiled()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
def deleted():
    inner = torch._inductor.compile_fx._compile_fx_inner
    build = cpp_builder.CppBuilder.build
    def and_delete(*args, **kwargs):
        shutil.rmtree(os.environ["TORCHINDUCTOR_CACHE_DIR"], ignore_errors=True)
        cpp_builder.CppBuilder.build = build
        return build(*args, **kwargs)
    cpp_builder.CppBuilder.build = and_delete
    return compiled()
CASES = {
    "missing": lambda: with_compiler("/no/such/compiler"),
    "failing": lambda: with_compiler(script("echo no >&2; exit 1")),
    "killed": lambda: with_compiler(script("kill -9 $$")),
    "slow": lambda: with_compiler(script('sleep 1; exec g++ "$@"')),
    "hanging": hanging,
    "full": full,
    "deleted": deleted,
}
found = {}
for name, case in CASES.items():
    read, write = os.pipe()
    if os.fork() == 0:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        result = [case(), compiled()]
        from torch._dynamo.utils import counters
        os.write(write, json.dumps(result).encode())
        os._exit(0)
    os.close(write)
    found[name] = json.loads(os.read(read, 1000) or "null")
    os.wait()
print(found)
"""


@pytest.mark.skipif("REGIONS_FAULTS" not in os.environ, reason="compiles 28 times by g++: REGIONS_FAULTS=1 asks for it")
def test_compilers_and_folders(tmp_path):
    """What becomes of a compile, and of the next one, is what it is in stock."""
    env = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1", "TMPDIR": str(tmp_path), vectors.VARIABLE: ""}
    ours, stock = (run_code(PROGRAM, TORCH_REGIONS=on, FLAG=on, timeout=1500, **env).out for on in ("1", "0"))
    assert ours == stock and "True" in ours, (ours, stock)
