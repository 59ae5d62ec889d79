"""Runs a program's text eagerly, compiled flat and compiled with regions, and says in what the last differs from flat.

What may be seen of a run: each call's result or exception, gradients, the state that it leaves behind, the random number
generator, how many frames were compiled by then, and how often the user's counted methods ran.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import linecache
import sys
import types
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._dynamo
import torch._functorch.config
import torch._inductor.config
from fuzz_parts import WRITTEN
from fuzz_snapshot import Snapshot, differs
from fuzz_text import IMPORTS
from torch._dynamo.utils import counters


MODULE = "fuzzed_program"
MODES = tuple(f"{how}{verify}" for how in ("flag", "mark", "both") for verify in ("", "+verify"))
_TOLERANCE = {"eager": 1e-5, "aot_eager": 1e-4, "inductor": 2e-3}


@dataclass
class Run:
    """What was seen of one run; a list has one element for each call."""

    seen: list[Any] = field(default_factory=list)
    frames: list[int] = field(default_factory=list)
    counts: list[dict[str, int]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    reused: int = 0


@dataclass(frozen=True)
class Failure:
    """In what a program with regions differs from the flat one."""

    kind: str  # result, gradient, state, random, error, recompiles, user code or verify
    message: str


@dataclass
class Checked:
    """The end of a check: a failure, a reason why the program shows nothing, or neither."""

    failure: Failure | None = None
    discarded: str | None = None
    reused: int = 0


def _load(text: str, mark: bool) -> types.ModuleType:
    module = types.ModuleType(MODULE)
    # Dynamo imports the module of a function that it inlines.
    sys.modules[MODULE] = module
    source = IMPORTS + text
    name = f"<fuzzed {hash(source)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    vars(module)["region"] = torch.compiler.nested_compile_region if mark else (lambda function: function)
    exec(compile(source, name, "exec", dont_inherit=True), vars(module))
    return module


def _one_call(function: Any, module: types.ModuleType, n: int, run: Run) -> list[Any]:
    x = module.inputs(n)
    torch.manual_seed(100 + n)
    counted = getattr(module, "COUNTS", {})
    counted.clear()
    result: Any = None
    try:
        with contextlib.nullcontext() if module.GRAD else torch.no_grad():
            result = function(x)
    except Exception as e:
        run.errors.append(f"{type(e).__name__}: {e}")
        result = ("raised", _kind_of(e))
    run.counts.append(dict(counted))
    run.frames.append(_compiles())
    random = torch.get_rng_state().tolist()[:64] if result is not None else None
    gradient: list[Any] = []
    if isinstance(result, torch.Tensor) and result.requires_grad:
        try:
            (result * torch.arange(1, result.numel() + 1).view(result.shape)).sum().backward()
        except Exception as e:
            gradient = ["raised", type(e).__name__]
            run.errors.append(f"{type(e).__name__}: {e}")
    values = Snapshot()
    shown = result
    if isinstance(result, torch.Tensor):
        shown = (str(result.dtype), tuple(result.shape), result.requires_grad, result.detach().clone())
    state = Snapshot()(
        [
            module.ROOT,
            module.layers(module.ROOT),
            *(getattr(module, name, None) for name in WRITTEN),
            _pools(module),
        ]
    )
    return [("result", shown), ("gradient", [gradient, values(x)]), ("random", random), ("state", state)]


def _compiles() -> int:
    """How many frames of the program were compiled since the last time; Python's own may be, whenever objects die."""
    metrics = torch._dynamo.utils.get_compilation_metrics()
    torch._dynamo.utils.clear_compilation_metrics()
    return sum(m.co_filename is not None and m.co_filename.startswith("<fuzzed") and not m.fail_type for m in metrics)


def _kind_of(e: BaseException) -> str:
    """The class of an exception, without what Dynamo wraps around it."""
    return type(e).__name__


def _pools(module: types.ModuleType) -> list[Any]:
    return [value for name, value in vars(module).items() if len(name) == 2 and name[0] in "PQR" and name[1].isdigit()]


def _run(text: str, backend: str | None, mark: bool, flag: bool, verify: bool) -> Run:
    torch._dynamo.reset()
    counters.clear()
    run = Run()
    config: dict[str, Any] = {"use_graph_deduplication": flag, "verify_region_reuse": verify}
    # Only a run with regions reads what an earlier one has kept: a wrong hit is then a difference.
    cached = {"enable_autograd_cache": flag or mark}
    with (
        torch._dynamo.config.patch(**config),
        torch._functorch.config.patch(**cached),
        torch._inductor.config.patch(fallback_random=True, fx_graph_cache=flag or mark),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        module = _load(text, mark)
        torch.manual_seed(0)
        model = module.make()
        function = model if backend is None else torch.compile(model, backend=backend)
        for n in range(module.CALLS):
            if n:
                try:
                    module.CHANGES[n - 1](model)
                except Exception as e:
                    run.seen.append([("change", type(e).__name__)])
                    break
            run.seen.append(_one_call(function, module, n, run))
        run.reused = counters["regions"]["reused"]
    return run


def _difference(wanted: Run, got: Run, tolerance: float) -> Failure | None:
    for n, (a, b) in enumerate(zip(wanted.seen, got.seen)):
        for (kind, x), (_, y) in zip(a, b):
            if (found := differs(x, y, tolerance)) is not None:
                if len(got.errors) > len(wanted.errors):
                    error = got.errors[-1]
                    return Failure("verify" if "RegionReuseError" in error else "error", f"call {n}: {error[:3000]}")
                return Failure(kind, f"call {n}: {found}")
    return None


def _users_code(flat: Run, got: Run) -> Failure | None:
    """Whether the user's methods run more often than flat."""
    for n, (f, g) in enumerate(zip(flat.counts, got.counts)):
        for name in sorted(g):
            if g[name] > f.get(name, 0):
                return Failure("user code", f"call {n}: {name} ran {g[name]} times, flat {f.get(name, 0)}")
    return None


def compare(flat: Run, got: Run, tolerance: float, verify: bool = False) -> Failure | None:
    if found := _difference(flat, got, tolerance):
        return found
    # What verifies a reuse traces a call and compares: it is asked for.
    if not verify and (found := _users_code(flat, got)):
        return found
    if flat.frames != got.frames:
        return Failure("recompiles", f"frames compiled in each call: {got.frames}, flat {flat.frames}")
    return None


@functools.lru_cache(maxsize=1)
def _without_regions(text: str, backend: str) -> tuple[Run, Checked | None]:
    """The flat run, and why it shows nothing if it does not; one is enough for all modes of a program."""
    try:
        eager = _run(text, None, False, False, False)
    except Exception as e:
        return Run(), Checked(discarded=f"not a program: {type(e).__name__}")
    flat = _run(text, backend, False, False, False)
    if flat.errors and not eager.errors:
        return flat, Checked(Failure("flat", flat.errors[-1][:300]), "flat raises")
    if found := _difference(eager, flat, _tolerance(text, backend)):
        return flat, Checked(Failure("flat", found.message), f"flat has another {found.kind}")
    return flat, None


def _tolerance(text: str, backend: str) -> float:
    return _TOLERANCE[backend] * (20 if "float16" in text and backend == "inductor" else 1)


def check(text: str, mode: str, backend: str) -> Checked:
    """Runs ``text`` eagerly, flat and with regions; ``mode`` is one of MODES."""
    flat, discarded = _without_regions(text, backend)
    if discarded is not None:
        return discarded
    how, _, verify = mode.partition("+")
    got = _run(text, backend, how != "flag", how != "mark", bool(verify))
    tolerance = _tolerance(text, backend)
    failure = compare(flat, got, tolerance, bool(verify))
    if failure is not None:
        again = _run(text, backend, False, False, False)
        if compare(flat, again, tolerance) is not None:
            return Checked(discarded="flat is not the same twice")
    return Checked(failure, reused=got.reused)


def clean() -> None:
    """Lets go of what the programs so far have left in the process."""
    torch._dynamo.reset()
    linecache.cache.clear()
    _without_regions.cache_clear()
    gc.collect()
