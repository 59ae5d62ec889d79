"""The inputs of a graph as values, with symbols of sizes numbered by first occurrence.

A symbol is named after the argument in which it was first seen, so programs whose arguments have different names have
different symbols. Compiled code depends only on the range of a symbol and on which sizes share it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.meta_utils import safe_is_leaf
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.multiprocessing.reductions import StorageWeakRef


class SymbolNames:
    """Names for the symbols in ``inputs``: s0, s1, ... in the order in which they occur there, or another ``form``."""

    def __init__(self, inputs: Sequence[Any], shape_env: Any, form: str = "s{}") -> None:
        self.shape_env, self._form = shape_env, form
        self.names: dict[sympy.Symbol, sympy.Symbol] = {}
        expressions = list(_expressions(inputs))
        compound = []
        for expression in expressions:
            if isinstance(expression, sympy.Symbol):
                self._name(expression)
            else:
                compound.append(expression)
        # Symbols that never occur alone are ordered by their own names. This may cause a miss, but never a wrong hit.
        for expression in compound:
            for symbol in sorted(expression.free_symbols, key=str):
                self._name(symbol)

    def _name(self, symbol: sympy.Symbol) -> sympy.Symbol:
        name = self.names.get(symbol)
        if name is None:
            assumptions = {k: v for k, v in symbol.assumptions0.items() if v is not None}
            name = self.names[symbol] = sympy.Symbol(self._form.format(len(self.names)), **assumptions)
        return name

    def text(self, number: Any) -> str:
        """A symbolic number as text that does not depend on the names of its symbols."""
        return self.text_of(number.node.expr)

    def text_of(self, expression: sympy.Basic) -> str:
        """An expression as such a text."""
        for symbol in sorted(expression.free_symbols, key=str):
            self._name(symbol)
        return str(expression.xreplace(self.names))

    def facts(self) -> list[Any]:
        """What the shape environment assumes of each symbol without a guard."""
        env = self.shape_env
        if env is None:
            return []
        facts: list[Any] = [repr(env.settings)]
        for symbol, name in self.names.items():
            bounds = env.var_to_range.get(symbol)
            facts.append(
                (
                    str(name),
                    str(symbol.assumptions0.get("integer")),
                    None if bounds is None else (str(bounds.lower), str(bounds.upper)),
                    symbol in env.size_like,
                    symbol in env.backed_var_to_val,
                    env.var_to_hint_override.get(symbol),
                )
            )
        return facts


def specialized_to(specialization: Any, sources: Sequence[Any] | None) -> tuple[int | str, str] | None:
    """The size that a graph is compiled for, as (argument, condition); None if there is no specialization.

    Dynamo compiles one graph for all sizes, and another for each condition of ``mark_dynamic(specialize_on=[...])``. It
    notes the condition in the graph's metadata and in the shape environment, under the symbol of the first compile: the
    inputs have the same metadata each time. The key has the condition's result for a fresh symbol, so it does not
    depend on how the condition is written.
    """
    if specialization is None:
        return None
    source = specialization.source
    names = [None if s is None else s.name for s in sources or ()]
    tensor = source.base.name
    where: int | str = names.index(tensor) if tensor in names else tensor
    said = specialization.check_fn(ShapeEnv().create_unbacked_symint())  # the first symbol of its own environment
    return where, f"{source.prop.name} {source.idx} {said}"


def _expressions(inputs: Sequence[Any]) -> Iterator[Any]:
    numbers: list[Any] = []
    for value in inputs:
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            numbers.append(value)
        elif isinstance(value, FakeTensor) and value._has_symbolic_sizes_strides:
            numbers += [*value.shape, *(value.stride() if value.layout == torch.strided else ())]
    for number in numbers:
        if isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool):
            yield number.node.expr


def shared_memory(inputs: Sequence[Any]) -> list[Any]:
    """Which inputs share memory, and how. AOTAutograd compiles for this if the program writes to one of them."""
    users: dict[StorageWeakRef, list[int]] = {}
    for index, value in enumerate(inputs):
        if isinstance(value, torch.Tensor) and value.layout == torch.strided and not _is_wrapper(value):
            users.setdefault(StorageWeakRef(value.untyped_storage()), []).append(index)
    shared = []
    for indices in users.values():
        if len(indices) > 1:
            first = {id(inputs[p]): p for p in reversed(indices)}
            shared.append([_view(p, inputs, first) for p in indices])
    return shared


def leaves(inputs: Sequence[Any]) -> list[int]:
    """Which inputs autograd refuses to write to. The compiled code detaches others when it writes to them."""
    tensors = ((i, value) for i, value in enumerate(inputs) if isinstance(value, torch.Tensor))
    return [i for i, value in tensors if value.requires_grad and safe_is_leaf(value)]


def _is_wrapper(value: torch.Tensor) -> bool:
    return type(value) not in (FakeTensor, torch.Tensor, torch.nn.Parameter)


def _view(index: int, inputs: Sequence[Any], first: dict[int, int]) -> tuple[Any, ...]:
    tensor = inputs[index]
    base = tensor._base
    # The same tensor twice, a view of another input, and views of one base are each handled differently.
    seen = None if base is None else first.setdefault(id(base), -1 - len(first))
    return index, first[id(tensor)], tensor.storage_offset(), seen, base is not None and base.requires_grad
