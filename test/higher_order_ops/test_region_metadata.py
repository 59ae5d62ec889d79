"""What a call of a region returns is known without running its body, and only where it is known for sure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._dynamo import config
from torch._higher_order_ops.metadata_keys import looks
from torch._higher_order_ops.region_metadata import (
    OUTLINED,
    known_results,
)
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv


RUNS = [0]


@torch.library.custom_op("regions_metadata::probe", mutates_args=())
def probe(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


@probe.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    RUNS[0] += 1
    return torch.empty_like(x)


@pytest.fixture
def fake() -> Iterator[FakeTensorMode]:
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        yield mode


@torch.compiler.nested_compile_region
def block(x: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"h": torch.ops.regions_metadata.probe(x) + 1}


def stack(x: torch.Tensor) -> torch.Tensor:
    for _ in range(8):
        x = block(x)["h"]
    return x


# Dynamo and AOTAutograd trace it; Inductor runs it on fake tensors and lowers it.  Once each, for eight calls.
@pytest.mark.parametrize(("backend", "runs"), [("aot_eager", 2), ("inductor", 4)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_body_runs_once_for_each_that_traces_it(backend: str, runs: int, dynamic: bool) -> None:
    torch._dynamo.reset()
    x = torch.randn(4, 6)
    with config.patch(verify_region_reuse=False), torch._inductor.config.patch(force_disable_caches=True):
        RUNS[0] = 0
        compiled = torch.compile(stack, backend=backend, fullgraph=True, dynamic=dynamic)
        torch.testing.assert_close(compiled(x), stack(x))
    assert RUNS[0] == runs


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_verified_it_runs_and_agrees(backend: str) -> None:
    torch._dynamo.reset()
    x = torch.randn(4, 6)
    with config.patch(verify_region_reuse=True):
        torch.testing.assert_close(torch.compile(stack, backend=backend, fullgraph=True)(x), stack(x))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("turn", [torch.Tensor.t_, lambda y: y.unsqueeze_(0), lambda y: y.squeeze_()])
def test_a_result_whose_shape_is_changed_later(backend: str, turn: Callable[[Any], Any]) -> None:
    @torch.compiler.nested_compile_region
    def region(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).sin()

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first, second = region(x), region(x + 1)
        turn(second)
        return first, second, (second * 3).sum(0)

    torch._dynamo.reset()
    x = torch.randn(4, 1)
    for ours, theirs in zip(torch.compile(program, backend=backend)(x), program(x), strict=True):
        assert ours.stride() == theirs.stride()
        torch.testing.assert_close(ours, theirs)


def _traced(function: Callable[..., Any], *operands: torch.Tensor) -> torch.fx.GraphModule:
    """A body as AOTAutograd leaves it: each node with its value."""
    return make_fx(function)(*operands)


def test_known_for_operands_with_the_same_metadata(fake: FakeTensorMode) -> None:
    body = _traced(lambda x, y: (x @ y, (x + 1).t()), torch.empty(3, 4), torch.empty(4, 5))
    known = known_results(body, (torch.empty(3, 4), torch.empty(4, 5)))
    assert known is not None
    assert [tuple(k.shape) for k in known] == [(3, 5), (4, 3)]
    assert [k.stride() for k in known] == [(5, 1), (1, 4)]


@pytest.mark.parametrize(
    "operand",
    [
        lambda: torch.empty(3, 5),
        lambda: torch.empty(4, 3).t(),
        lambda: torch.empty(3, 4, dtype=torch.float64),
        lambda: torch.empty(3, 4, device="meta"),
        lambda: torch.empty(3, 4, requires_grad=True),
        lambda: torch.nn.Parameter(torch.empty(3, 4)),
        lambda: 3,
    ],
    ids="shape stride dtype device requires_grad parameter number".split(),
)
def test_not_known_for_operands_with_other_metadata(fake: FakeTensorMode, operand: Callable[[], Any]) -> None:
    body = _traced(lambda x: (x.sin(),), torch.empty(3, 4))
    assert known_results(body, (torch.empty(3, 4),)) is not None
    assert known_results(body, (operand(),)) is None


@pytest.mark.parametrize(
    "operand",
    [lambda: torch.empty(13)[1:].view(3, 4), lambda: torch.empty(20).as_strided((3, 4), (4, 1))],
    ids="offset storage".split(),
)
def test_known_where_operands_begin_elsewhere_unless_the_body_sees_it(
    fake: FakeTensorMode, operand: Callable[[], Any]
) -> None:
    body = _traced(lambda x: (x.sin(),), torch.empty(3, 4))
    assert known_results(body, (operand(),)) is not None
    sees = _traced(lambda x: (x.as_strided((2, 2), (1, 1), 1).sin(),), torch.empty(3, 4))
    assert known_results(sees, (torch.empty(3, 4),)) is not None
    assert known_results(sees, (operand(),)) is None


def test_a_view_of_an_operand_begins_where_the_operand_does(fake: FakeTensorMode) -> None:
    body = _traced(lambda x: (x[1:].t(), x + 1), torch.empty(3, 4))
    given = torch.empty(13)[1:].view(3, 4)
    known = known_results(body, (given,), fake, aliases=True)
    assert known is not None and known[0] is not None
    assert known[0].storage_offset() == 1 + 4
    assert known[0].untyped_storage()._cdata == given.untyped_storage()._cdata


def test_not_known_under_autocast(fake: FakeTensorMode) -> None:
    body = _traced(lambda x, y: (x @ y,), torch.empty(3, 4), torch.empty(4, 5))
    with torch.autocast("cpu"):
        assert known_results(body, (torch.empty(3, 4), torch.empty(4, 5))) is None


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x.view(-1),),
        lambda x: (x,),
        lambda x: (x.sin(),) * 2,
        lambda x: (torch.cat([x, x])[:3],),
        lambda x: (torch.cat([x, x])[3:],),
        lambda x: (torch.complex(x, x).conj(),),
        lambda x: (x.to_sparse(),),
        lambda x: (x.sin(), 3),
    ],
    ids="view input twice part offset conj sparse number".split(),
)
def test_not_known_for_results_that_are_more_than_fresh_memory(
    fake: FakeTensorMode, function: Callable[..., Any]
) -> None:
    body = _traced(function, torch.empty(3, 4))
    assert known_results(body, (torch.empty(3, 4),)) is None


ALIASING = {
    "input": lambda x, y: (x, y.sin(), x),
    "view": lambda x, y: (x.t(), x[1:], y.sin()),
    "view of a view": lambda x, y: (x[1:].view(-1)[2:], y + 1),
    "of each other": lambda x, y: ((z := (x @ y).sin()), z.t(), z, z.view(-1)),
    "all of it": lambda x, y: (y, (z := y.exp()).t(), x[:, 1:], z, None, y.t()),
}


@pytest.mark.parametrize("function", ALIASING.values(), ids=list(ALIASING))
@pytest.mark.parametrize("verify", [False, True])
def test_results_that_alias_are_as_running_the_body_makes_them(
    fake: FakeTensorMode, function: Callable[..., Any], verify: bool
) -> None:
    def sharing(values: Any) -> list[Any]:
        storages = [v.untyped_storage()._cdata for v in values if v is not None]
        return list(map(storages.index, storages))

    body = _traced(function, torch.empty(3, 4), torch.empty(4, 5))
    for operands in ((torch.empty(3, 4), torch.empty(4, 5)) for _ in range(2)):
        assert known_results(body, operands) is None
        with config.patch(verify_region_reuse=verify):
            known = known_results(body, operands, fake, aliases=True)
        ran = function(*operands)
        assert known is not None and list(map(looks, known)) == list(map(looks, ran))
        assert sharing((*operands, *known)) == sharing((*operands, *ran))
        assert [any(k is o for o in operands) for k in known] == [any(r is o for o in operands) for r in ran]


def test_not_known_for_a_body_whose_operands_share_memory(fake: FakeTensorMode) -> None:
    x = torch.empty(3, 4)
    body = _traced(lambda x, y: (x.view(-1), y.sin()), x, x.view(3, 4))
    assert known_results(body, (x, x.view(3, 4)), fake, aliases=True) is None


def test_a_result_that_is_none_is_known(fake: FakeTensorMode) -> None:
    """Such is the gradient of an operand that has none."""
    body = _traced(lambda x: (None, x.sin(), None), torch.empty(3, 4))
    known = known_results(body, (torch.empty(3, 4),))
    assert known is not None and known[::2] == (None, None)
    assert looks(known[1]) == looks(torch.empty(3, 4))


def test_equal_symbolic_sizes_are_known() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    grown = [mode.from_tensor(torch.empty(3 + i, 5 + i), static_shapes=False) for i in (0, 4)]
    with mode:
        body = _traced(lambda x: (x.sin(), torch.cat([x, x])), grown[0])
        known = known_results(body, (torch.empty(*grown[0].shape),))
        assert known is not None and looks(known[1]) == looks(torch.cat([grown[0], grown[0]]))
        assert known_results(body, (grown[1],)) is None


def test_verifying_raises_when_a_body_returns_something_else(fake: FakeTensorMode) -> None:
    body = _traced(lambda x: (x.sin(),), torch.empty(3, 4))
    body.meta[OUTLINED] = True
    wrong = body.graph.output_node().args[0][0]  # type: ignore[index, union-attr]
    for node in body.graph.nodes:
        node.meta["example_value"] = node.meta.get("val")
    wrong.meta["example_value"] = torch.empty(4, 3)  # type: ignore[union-attr]
    with config.patch(verify_region_reuse=True), pytest.raises(AssertionError, match="was known to return"):
        known_results(body, (torch.empty(3, 4),))


def test_a_fake_mode_answers_before_it_looks_for_an_earlier_call(fake: FakeTensorMode) -> None:
    """Its cache of operators is not asked, and each call has results of its own."""
    body = make_fx(lambda x: (x.sin(), x.t().clone()))(torch.empty(2, 3))
    call, other = torch.empty(2, 3), torch.empty(4, 5)
    asked = FakeTensorMode.cache_info().hits, FakeTensorMode.cache_info().misses
    results = [torch.ops.higher_order.invoke_subgraph(body, "body", call) for _ in range(2)]
    assert (FakeTensorMode.cache_info().hits, FakeTensorMode.cache_info().misses) == asked
    assert [looks(r) for r in results[0]] == [looks(r) for r in results[1]] == [looks(call), looks(call.t().clone())]
    storages = {r.untyped_storage()._cdata for result in results for r in result}
    assert len(storages) == 4
    # Of operands that the body was not traced for, the mode finds out by itself.
    assert [r.shape for r in torch.ops.higher_order.invoke_subgraph(body, "body", other)] == [(4, 5), (5, 4)]


def test_where_real_tensors_are_propagated_the_mode_computes() -> None:
    body = make_fx(lambda x: (x.sin(),), tracing_mode="fake")(torch.ones(2))
    with torch._functorch.config.patch(fake_tensor_propagate_real_tensors=True):
        mode = FakeTensorMode(shape_env=ShapeEnv())
        fake = mode.from_tensor(torch.ones(2), static_shapes=True)
        with mode:
            (result,) = torch.ops.higher_order.invoke_subgraph(body, "body", fake)
    assert result.real_tensor is not None
    torch.testing.assert_close(result.real_tensor, torch.ones(2).sin())
