"""Whatever is hidden or renamed for a key is as before afterwards, also when something raises."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.fx
from testing.cache_keys import keys_of
from torch._functorch import config
from torch._functorch._aot_autograd.autograd_cache import normalize_placeholder_names, sanitize_gm_for_cache

from torch_regions.overlay import stock


class StoppedError(Exception):
    pass


def graph_module() -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    x, size, p_1 = (graph.placeholder(name) for name in ("x", "size", "p_1"))
    size.type = torch.SymInt
    graph.output((graph.call_method("view", (graph.call_function(torch.add, (x, p_1)), size)),))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def snapshot(gm: torch.fx.GraphModule) -> Any:
    space = gm.graph._graph_namespace
    nodes = [(id(n), n.name, n.target) for n in gm.graph.nodes]
    return nodes, gm.code, set(space._used_names), dict(space._base_count), dict(space._obj_to_name)


def test_names_and_counters_come_back():
    gm = graph_module()
    before = snapshot(gm)
    with normalize_placeholder_names(gm):
        # A symbolic size keeps its name.
        assert [n.target for n in gm.graph.find_nodes(op="placeholder")] == ["p_0", "size", "p_1"]
        assert "def forward(self, p_0, size : torch.SymInt, p_1)" in gm.code
    assert snapshot(gm) == before


@pytest.mark.parametrize("hidden", [normalize_placeholder_names, sanitize_gm_for_cache])
def test_also_when_something_raises(hidden):
    gm = graph_module()
    gm.meta["kept"] = 1
    before, fields = snapshot(gm), dict(gm.__dict__)
    with pytest.raises(StoppedError), hidden(gm):
        raise StoppedError
    assert snapshot(gm) == before
    assert gm.meta == {"kept": 1} and gm.__dict__.keys() == fields.keys()


def test_a_renaming_that_raises():
    gm = graph_module()
    before = snapshot(gm)

    def hook(old: Any, new: str, user: Any) -> None:
        if new == "p_0":
            raise StoppedError

    gm._replace_hooks.append(hook)
    with pytest.raises(StoppedError), normalize_placeholder_names(gm):
        pass
    gm._replace_hooks.clear()
    assert snapshot(gm) == before


def test_fields_that_were_absent_stay_absent():
    gm = graph_module()
    gm.meta["kept"] = 1
    assert not hasattr(gm, "_backend_id")
    with sanitize_gm_for_cache(gm):
        assert gm.meta == {} and gm._backend_id is None and gm.compile_subgraph_reason is None
    assert gm.meta == {"kept": 1}
    assert not hasattr(gm, "_backend_id") and not hasattr(gm, "compile_subgraph_reason")


def test_without_normalizing_the_key_is_that_of_stock():
    one, other = (lambda x: x.sin() + 1), (lambda y: y.sin() + 1)
    assert keys_of(one, torch.ones(3)) == keys_of(other, torch.ones(3))
    with config.patch(autograd_cache_normalize_inputs=False):
        assert set(keys_of(one, torch.ones(3))).isdisjoint(keys_of(other, torch.ones(3)))
        found = []

        def backend(gm, inputs):
            from torch._functorch import aot_autograd

            module = "torch._functorch._aot_autograd.autograd_cache"
            with pytest.MonkeyPatch.context() as patch:
                found.append(aot_autograd.autograd_cache_key(gm, inputs, False, {}, None)[0])
                patch.setattr(f"{module}.autograd_cache_key", stock(f"{module}:autograd_cache_key"))
                found.append(aot_autograd.autograd_cache_key(gm, inputs, False, {}, None)[0])
            return gm.forward

        torch._dynamo.reset()
        torch.compile(one, backend=backend)(torch.ones(3))
    assert found[0] == found[1]


def test_what_stock_does_not_cache_is_not_cached():
    """Also where it is called in a body, which stock does not look into."""

    @torch._dynamo.allow_in_graph
    def opaque(x):
        return x * 2

    def outer(x):
        return opaque(x)

    (reason,) = keys_of(outer, torch.ones(3))
    assert "Unsupported call_function target" in reason

    def inner(x):
        return torch.utils.checkpoint.checkpoint(outer, x, use_reentrant=False)

    (reason,) = keys_of(inner, torch.ones(3, requires_grad=True))
    assert "Unsupported call_function target" in reason


def test_a_nonce_where_a_key_is_demanded():
    """One that the program's own random numbers do not depend on, and that they do not choose."""

    def program(x):
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    found = []
    with config.patch(bypass_autograd_cache_key=True):
        for _ in range(2):
            random.seed(0)
            before = random.getstate()
            found += keys_of(program, torch.ones(3))
            assert random.getstate() == before
    assert len(set(found)) == 2
