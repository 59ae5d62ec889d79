"""Keys of AOTAutogradCache for programs, without compiling them, and programs given as text that can be edited."""

from __future__ import annotations

import contextlib
import itertools
import linecache
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch._dynamo
from torch._functorch import config as functorch_config
from torch._functorch.aot_autograd import autograd_cache_key


_numbers = itertools.count()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Programs that are not cached are meant here; torch says at length why a key cannot be pickled."""
    logger = logging.getLogger("torch._inductor.codecache")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def keys_of(program: Callable[..., Any], *args: Any, dynamic: bool | None = False, **kwargs: Any) -> list[str]:
    """The key of each graph that Dynamo makes of a call; the reason for a graph that has none."""
    keys: list[str] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        nodes = [(id(n), n.name, n.target) for n in gm.graph.nodes]
        fields = dict(gm.__dict__)
        try:
            keys.append(autograd_cache_key(gm, inputs, False, {}, None)[0])
        except Exception as reason:
            keys.append(f"{type(reason).__name__}: {reason}")
        assert nodes == [(id(n), n.name, n.target) for n in gm.graph.nodes]
        if functorch_config.autograd_cache_normalize_inputs:  # stock's key recompiles
            assert fields.keys() == gm.__dict__.keys()
            assert all(fields[k] is v for k, v in gm.__dict__.items())
        return gm.forward

    torch._dynamo.reset()
    with quiet():
        torch.compile(program, backend=backend, dynamic=dynamic)(*args, **kwargs)
    assert keys, "nothing was compiled"
    return keys


def load(source: str) -> dict[str, Any]:
    """What a text defines, as a module of its own file would."""
    name = f"<program {next(_numbers)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "__name__": "program"}
    exec(compile(source, name, "exec"), namespace)
    return namespace


def keys_of_text(source: str, *args: Any, **kwargs: Any) -> list[str]:
    """Keys of the function ``f`` that a text defines, called with its ``inputs()`` unless others are given."""
    torch.manual_seed(0)
    namespace = load(source)
    return keys_of(namespace["f"], *(args or namespace["inputs"]()), **kwargs)
