"""Keys of the bodies of a program, without compiling them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
import torch._dynamo
from torch._inductor.regions import lowering
from torch._inductor.regions.cache import BodyBypass, key_of
from torch._inductor.regions.cache_symbols import Symbols
from torch._inductor.virtualized import V


class _SeenError(Exception):
    pass


def twice(body: Callable[..., Any], marked: bool = True) -> Callable[..., Any]:
    """A program that calls ``body`` two times; once would not make it a region."""
    called = torch.compiler.nested_compile_region(body) if marked else body

    def program(x, *others):
        first = called(x, *others)
        return first, called(x + 1, *others)

    return program


def key(body: Callable[..., Any], *args: Any, dynamic: bool = False) -> str:
    """The key of a body's forward, or why it has none."""
    found: list[str] = []

    def prepare(subgraph: Any, examples: Any) -> None:
        try:
            found.append(key_of(subgraph.graph_module, examples, V.graph, Symbols(V.graph._shape_env)))
        except BodyBypass as refusal:
            found.append(refusal.reason.name)
        raise _SeenError

    torch._dynamo.reset()
    with (
        patch.object(lowering, "prepare", prepare),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        try:
            torch.compile(twice(body), dynamic=dynamic)(*args)
        except torch._dynamo.exc.BackendCompilerFailed as error:
            assert isinstance(error.inner_exception.__cause__ or error.inner_exception, Exception)
    assert found, "no body was lowered"
    return found[0]
