"""A sample of the injections of inject.py, which says how all are made."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path

import pytest
from testing.overlay_tools import REPO, run_python


HERE = Path(__file__).parent
WITHOUT_THREADS = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the state is read from /proc")


def injected(*options: str) -> str:
    result = run_python(str(HERE / "inject.py"), *options, check=False, timeout=3000, **WITHOUT_THREADS)
    assert result.code == 0, result.out + result.err
    return result.out


@pytest.mark.parametrize("choice, count", [("layers/eager", 14), ("marks/eager", 8)])
def test_a_sample_of_injections(choice, count):
    assert f"{count} injections" in injected("--programs", choice, "--count", str(count), "--seed", "1")


@pytest.mark.skipif("REGIONS_FAULTS" not in os.environ, reason="takes half an hour: REGIONS_FAULTS=1 asks for it")
def test_all_injections():
    injected("--count", "2100")


def _entered_and_returned(function: ast.FunctionDef) -> bool:
    entered = {
        call.func.value.id
        for call in ast.walk(function)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "enter_context"
        if isinstance(call.func.value, ast.Name)
    }
    returned = {
        node.value.id
        for node in ast.walk(function)
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Name)
    }
    return bool(entered & returned)


def test_no_function_returns_a_context_that_it_has_entered():
    """An exception on its way back would leave the context entered: the caller's ``with`` has not begun."""
    found = [
        f"{path.name}:{node.lineno} {node.name}"
        for folder in ("torch", "torch_regions")
        for path in sorted((REPO / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and _entered_and_returned(node)
    ]
    assert not found


def test_a_state_that_is_left_behind_is_named():
    """The comparison can fail: each kind of state, changed by hand."""
    result = run_python(
        "-c",
        """if True:
        import gc, os, sys, threading, tempfile
        import torch, torch._dynamo, torch.fx
        from global_state import GlobalState
        tempfile.tempdir = tempfile.mkdtemp()
        state = GlobalState()
        assert state.differing() == [], state.differing()
        gc.set_threshold(1, 2, 3)
        sys.setrecursionlimit(1234)
        torch.set_grad_enabled(False)
        torch._dynamo.config.use_graph_deduplication = True
        call, torch.nn.Module.__call__ = torch.nn.Module.__call__, lambda *a: None
        torch._dynamo.reset.__code__ = (lambda: None).__code__
        kept = open(tempfile.mktemp(), "w")
        class Mode(torch.utils._python_dispatch.TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                return function(*args, **(kwargs or {}))
        mode = Mode()
        mode.__enter__()
        os.environ["ONE_MORE"] = "1"
        if (child := os.fork()) == 0:
            import signal; signal.pause()
        threading.Thread(target=threading.Event().wait, daemon=True, name="left").start()
        try:
            found = " ".join(state.differing())
        finally:
            os.kill(child, 9)  # it has the pipes of this process
        mode.__exit__(None, None, None)
        print(found)
        os._exit(0) if not sys.stdout.flush() else None
        """,
        path=[HERE],
        **WITHOUT_THREADS,
    ).out
    for part in (
        *("collector.threshold", "recursion limit", "torch.grad", "use_graph_deduplication", "descriptors", "children"),
        *("modules.module.Module.__call__", "code.torch._dynamo.reset", "modes.dispatch", "environment", "threads"),
        "temporary",
    ):
        assert part in result, (part, result)
