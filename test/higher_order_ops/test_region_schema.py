"""The schema of a region is remembered, and only for calls that cannot tell apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._guards import TracingContext, tracing
from torch._higher_order_ops.invoke_subgraph import invoke_subgraph
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv


# What is tested runs for programs with regions only.
pytestmark = pytest.mark.usefixtures("with_regions")


def _flat_add(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor]:
    x.reshape(-1).add_(1)
    return (x + y,)


def _grad_only(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor]:
    if x.requires_grad:
        return (x + y,)
    return (x.add_(y) + 1,)


class Body:
    """A body that counts how often it is traced."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.runs = 0
        body = self

        class Region(torch.nn.Module):
            def forward(self, *args: Any) -> Any:
                body.runs += 1
                return function(*args)

        self.module = torch.fx.GraphModule(torch.nn.Module(), torch.fx.Graph())
        # What the graph says does not matter here, but that it is a GraphModule.
        self.module.add_module("region", Region())
        placeholders = [self.module.graph.placeholder(name) for name in ("x", "y")]
        call = self.module.graph.call_module("region", tuple(placeholders))
        self.module.graph.output(call)
        self.module.recompile()

    def schema(self, *operands: Any) -> list[bool]:
        schema = invoke_subgraph.gen_schema(self.module, "name", *operands)
        return [argument.is_write for argument in schema.arguments[2:]]


@pytest.fixture
def fake() -> Iterator[FakeTensorMode]:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    with tracing(TracingContext(mode)), mode:
        yield mode


def test_once_for_like_calls(fake: FakeTensorMode) -> None:
    body = Body(_flat_add)
    for _ in range(4):
        assert body.schema(torch.empty(4, 6), torch.empty(4, 6)) == [True, False]
    assert body.runs == 1


def test_strides(fake: FakeTensorMode) -> None:
    body = Body(_flat_add)
    assert body.schema(torch.empty(4, 6), torch.empty(4, 6)) == [True, False]
    assert body.schema(torch.empty(6, 4).t(), torch.empty(4, 6)) == [False, False]


def test_requires_grad_and_grad_mode(fake: FakeTensorMode) -> None:
    body = Body(_grad_only)
    assert body.schema(torch.empty(4), torch.empty(4)) == [True, False]
    assert body.schema(torch.empty(4, requires_grad=True), torch.empty(4)) == [False, False]
    runs = body.runs
    with torch.no_grad():
        body.schema(torch.empty(4), torch.empty(4))
    assert body.runs > runs


def test_numbers(fake: FakeTensorMode) -> None:
    def write_if_three(x: torch.Tensor, n: int) -> tuple[torch.Tensor]:
        return (x.add_(n),) if n == 3 else (x + n,)

    body = Body(write_if_three)
    assert body.schema(torch.empty(4), 3)[0]
    assert not body.schema(torch.empty(4), 4)[0]


@pytest.mark.parametrize("field", ["shape", "dtype"])
def test_metadata(fake: FakeTensorMode, field: str) -> None:
    body = Body(lambda x, y: (x.add_(1) if x.dtype is torch.float32 and x.shape[0] == 4 else x + 1,))
    other = torch.empty(5) if field == "shape" else torch.empty(4, dtype=torch.float64)
    assert body.schema(torch.empty(4), None)[0]
    assert not body.schema(other, None)[0]


def test_symbolic_sizes_are_compared_as_expressions(fake: FakeTensorMode) -> None:
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    assert fake.shape_env is not None
    sizes = [
        fake.shape_env.create_symintnode(
            fake.shape_env.create_symbol(hint, ConstantSource(f"s_{hint}"), dynamic_dim=DimDynamic.DYNAMIC), hint=hint
        )
        for hint in (7, 9)
    ]
    body = Body(_flat_add)
    first, again, other = (torch.empty(size) for size in (sizes[0], sizes[0], sizes[1]))
    body.schema(first, again)
    body.schema(again, first)
    assert body.runs == 1
    body.schema(other, other)
    assert body.runs == 2


def test_a_changed_body_is_traced_again(fake: FakeTensorMode) -> None:
    body = Body(lambda x, y: (x + 1,))
    assert body.schema(torch.empty(4), torch.empty(4)) == [False, False]
    graph = body.module.graph
    first = next(iter(graph.nodes))
    with graph.inserting_before(next(iter(graph.find_nodes(op="call_module")))):
        graph.call_function(torch.ops.aten.add_.Tensor, (first, 1))
    body.module.recompile()
    assert body.schema(torch.empty(4), torch.empty(4)) == [True, False]


def test_not_across_compiles() -> None:
    body = Body(_flat_add)
    for _ in range(2):
        mode = FakeTensorMode()
        with tracing(TracingContext(mode)), mode:
            body.schema(torch.empty(4), torch.empty(4))
    assert body.runs == 2


def _scales(x: torch.Tensor, y: torch.Tensor) -> tuple[Any, ...]:
    x.mul_(2)
    return torch.split(x * y, 2)[0], None, x + 1


def _writes_to_its_own(x: torch.Tensor, y: torch.Tensor) -> tuple[Any, ...]:
    kept = x + y
    kept.add_(1).t_()
    return kept, y.sum()


def _writes_to_a_view(x: torch.Tensor, y: torch.Tensor) -> tuple[Any, ...]:
    y.t()[0].copy_(x[0])
    return (x @ y,)


@pytest.mark.parametrize("body", [_scales, _writes_to_its_own, _writes_to_a_view], ids=lambda body: body.__name__)
def test_of_a_traced_body_is_stocks_without_tracing_it_anew(fake: FakeTensorMode, body: Callable[..., Any]) -> None:
    from torch._higher_order_ops.region_schema import remembered_schema
    from torch.fx.experimental.proxy_tensor import make_fx

    operands = torch.empty(4, 4), torch.empty(4, 4)
    traced = make_fx(body)(*operands)
    runs = []

    def generate() -> Any:
        runs.append(1)
        return None

    found = remembered_schema(traced, operands, generate)
    with tracing(None):
        stocks = invoke_subgraph.gen_schema(traced, "name", *operands)
    assert str(found) == str(stocks) and not runs
    other = torch.empty(4, 4).t(), torch.empty(4, 4)
    remembered_schema(traced, other, generate)
    assert runs == [1]
