"""The tracer of bodies by itself, and what it leaves behind when a body cannot be traced."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo
from testing.wrap_programs import BODIES, Pair, State, recompute, same_as_eager, tensors, wrap
from torch._dynamo.variables import higher_order_ops as hops


# The tracer as a function of its own


@pytest.mark.parametrize(
    "options", [{}, {"restore_side_effects": False}, {"under_activation_checkpoint": True}], ids=str
)
@pytest.mark.parametrize("body", ["a_nested_dict", "a_user_object", "a_value_twice_in_objects", "its_input"])
def test_the_tracer_by_itself(body, options, monkeypatch):
    def speculate(*args, **kwargs):
        for name in ("allow_side_effects", "filter_aliased_intermediates"):
            kwargs.pop(name)
        found = hops.speculate_subgraph_with_wrap_semantics(*args, **options, **kwargs)
        assert len(found) == 4
        return *found, hops.SubgraphTracingInfo()

    monkeypatch.setattr(hops, "speculate_subgraph_with_auto_output_flattening", speculate)
    same_as_eager(lambda x, w, state: (wrap(BODIES[body], x, w), x * 2))


# What a failed trace leaves behind


class Watched:
    """Records what tracing a body left in the side effects, when it failed."""

    def __init__(self, monkeypatch):
        self.left = []
        real = hops.speculate_subgraph_with_auto_output_flattening

        def spy(tx, *args, **kwargs):
            effects = tx.output.side_effects
            before = self.state(effects)
            try:
                return real(tx, *args, **kwargs)
            except torch._dynamo.exc.Unsupported:
                assert tx.output.side_effects is effects
                self.left.append((before, self.state(effects)))
                raise

        monkeypatch.setattr(hops, "speculate_subgraph_with_auto_output_flattening", spy)

    @staticmethod
    def state(effects):
        mutations = {k: dict(v) for k, v in effects.store_attr_mutations.items()}
        new = [v for v in effects.id_to_variable.values() if type(v.mutation_type).__name__.endswith("New")]
        assert {id(x) for x in effects.keepalive} <= set(effects.id_to_variable)
        return mutations, new, list(effects.tensor_hooks), list(effects.mutated_sources)


def test_a_body_that_breaks_takes_its_side_effects_back(monkeypatch, skip_side_effects):
    watched = Watched(monkeypatch)

    def body(t, state):
        state.n = 5
        state.pair = Pair(t.sin())
        torch._dynamo.graph_break()
        return state.pair.first * state.n

    def function(x, w, state):
        state.n = 2
        return recompute(body, x * state.n, state)

    same_as_eager(function, State(n=1), fullgraph=False, calls=1)
    assert watched.left
    for before, after in watched.left:
        assert before == after


def test_the_flag_of_visible_side_effects_is_put_back_by_an_exception(monkeypatch):
    flags = []
    real = torch._dynamo.output_graph.OutputGraph.subtracer
    tracers = []

    def remember(self, *args, **kwargs):
        manager = real(self, *args, **kwargs)
        enter = manager.__enter__

        class Manager:
            def __enter__(_):
                tracers.append(enter())
                return tracers[-1]

            def __exit__(_, *exc_info):
                flags.append(tracers[-1].traced_with_externally_visible_side_effects)
                return manager.__exit__(*exc_info)

        return Manager()

    monkeypatch.setattr(torch._dynamo.output_graph.OutputGraph, "subtracer", remember)

    def body(t, log):
        torch._dynamo.utils._disable_side_effect_safety_checks_for_current_subtracer(log.append, 1)
        torch._dynamo.graph_break()
        return t.sin()

    torch.compile(lambda x, log: recompute(body, x, log), backend="eager")(tensors()[0], [])
    assert flags and not any(flags)
