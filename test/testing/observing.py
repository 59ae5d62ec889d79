"""All that a compiled function can be seen to do, and the difference between two of them."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import random
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch._dynamo
from torch._dynamo.testing import CompileCounterWithBackend


class Point(NamedTuple):
    a: Any
    b: Any


@dataclasses.dataclass
class Pair:
    a: Any
    b: Any


class Box:
    def __init__(self, value: Any) -> None:
        self.value = value
        self.n = 1


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = torch.nn.Linear(4, 4)
        self.register_buffer("buf", torch.ones(4))
        self.count = 0


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors in a region's result, as a caller gets at them."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in tensors(v)]
    if isinstance(value, dict):
        return [t for v in value.values() for t in tensors(v)]
    if isinstance(value, Pair):
        return tensors(value.a) + tensors(value.b)
    if isinstance(value, Box):
        return tensors(value.value)
    if isinstance(value, torch.nn.Module):
        return [*value.parameters(), *value.buffers()]
    if hasattr(value, "__next__"):
        return [t for v in value for t in tensors(v)]
    return []


def observe(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    backend: str,
    fullgraph: bool,
    calls: int = 2,
    state: Any = None,
    between: Callable[[int], None] = lambda call: None,
    grad: bool = True,
) -> dict[str, Any]:
    """All that some runs of ``f``, compiled, can be seen to do, each followed by its backward.

    ``state``: what else it may change.  The gradients are those of all leaves in ``args`` and ``state``.
    ``between`` is called before each run, with its number.  Without ``grad``, the runs are under ``no_grad``.
    """
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(f, backend=counter, fullgraph=fullgraph)
    seen: dict[str, Any] = {"args": args, "state": state, "results": [], "graphs": [], "modes": []}
    leaves = [t for t in tensors([args, state]) if t.is_leaf]
    torch.manual_seed(1)
    random.seed(1)
    printed = io.StringIO()
    for call in range(calls):
        between(call)
        try:
            torch.set_grad_enabled(grad)
            with contextlib.redirect_stdout(printed):
                result = compiled(*args)
            seen["modes"].append(_modes())
            seen["results"].append(result)
            tops = [t for t in tensors(result) if t.requires_grad]
            if tops:
                sum((t.float() ** 2).mean() * (k + 1) for k, t in enumerate(tops)).backward()  # type: ignore[union-attr]
        except Exception as e:
            seen["modes"].append(_modes())
            seen["results"].append(_of_exception(e))
        finally:
            torch.set_grad_enabled(True)
        seen["graphs"].append(counter.frame_count)
    seen["gradients"] = [t.grad for t in leaves]
    seen["random"] = torch.get_rng_state(), random.random()
    seen["printed"] = printed.getvalue()
    return seen


def _modes() -> tuple[bool, ...]:
    """Global state that a call may leave behind."""
    return torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.is_inference_mode_enabled()


def _of_exception(error: BaseException) -> tuple[str, str]:
    """Type and message; not the stacks and the dump of a graph that follow it, in which the mark's closure shows."""
    message = str(error)
    for rest in ("from user code", "While executing", "Developer debug context"):
        message = message.split(rest)[0]
    return type(error).__name__, re.sub("0x[0-9a-f]+", "0x", message).strip()


class _Describer:
    """Turns values into plain ones that compare: structure, sharing of objects and of storages."""

    def __init__(self) -> None:
        self.objects: dict[int, int] = {}
        self.storages: dict[int, int] = {}
        self.alive: list[Any] = []
        self.leaves: list[torch.Tensor] = []

    def describe(self, value: Any) -> Any:
        if value is None or isinstance(value, (int, float, str, bool)):
            return repr(value)
        if id(value) in self.objects:
            return ("seen", self.objects[id(value)])
        self.objects[id(value)] = len(self.objects)
        self.alive.append(value)
        if isinstance(value, torch.Tensor):
            self.leaves.append(value.detach().clone())
            storage = self.storages.setdefault(value.untyped_storage()._cdata, len(self.storages))
            return (
                type(value).__name__,
                tuple(value.shape),
                value.stride(),
                value.dtype,
                value.requires_grad,
                value.is_leaf,
                ("storage", storage),
            )
        if isinstance(value, (list, tuple)):
            return (type(value).__name__, [self.describe(v) for v in value])
        if isinstance(value, dict):
            return [(k, self.describe(v)) for k, v in value.items()]
        if isinstance(value, torch.nn.Module):
            own = {k: v for k, v in vars(value).items() if not k.startswith("_")}
            held = [*value.named_parameters(), *value.named_buffers()]
            return (type(value).__name__, self.describe(own), self.describe(held))
        if callable(value):
            return ("callable", self.describe(value()))
        if hasattr(value, "__next__"):
            return ("iterator", [self.describe(v) for v in value])
        if hasattr(value, "__dict__"):
            return (type(value).__name__, self.describe(vars(value)))
        return repr(value)


def difference(wanted: dict[str, Any], got: dict[str, Any]) -> str | None:
    """What differs between two runs, or None."""
    # One describer a run: which results are the arguments, or share their memory, is compared too.
    sides = _Describer(), _Describer()
    for what in wanted:
        before = len(sides[0].leaves)
        texts = [side.describe(run[what]) for side, run in zip(sides, (wanted, got))]
        if texts[0] != texts[1]:
            return f"{what}:\n  {texts[0]}\nagainst\n  {texts[1]}"
        for k, (a, b) in enumerate(zip(*(side.leaves[before:] for side in sides))):
            try:
                torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-4, equal_nan=True)
            except AssertionError as e:
                return f"{what}, tensor {k}: {e}"
    return None
