"""Which modules become regions by themselves: the policy alone, with what Dynamo would ask it."""

import os
import subprocess
import sys
import types

import pytest
import torch
from testing.automatic_cases import Block, Stack
from torch._dynamo.regions.outcomes import ReuseMissReason
from torch._dynamo.regions.trace import candidates
from torch._dynamo.regions.trace.candidates import Candidates
from torch._dynamo.source import AttrSource, DictGetItemSource, GetItemSource, LocalSource


nn = torch.nn
SELF = LocalSource("self")


def _child(source, name):
    return DictGetItemSource(AttrSource(source, "_modules"), name)


class Asker:
    """Asks as Dynamo does in a frame whose ``self`` is ``model``."""

    def __init__(self, model):
        root = types.SimpleNamespace(f_globals={}, f_locals={"self": model})
        self.tx = types.SimpleNamespace(output=types.SimpleNamespace(root_tx=root))
        self.model = model
        self.candidates = Candidates()

    def accepts(self, path):
        module, source = self.model, SELF
        for name in path.split("."):
            module, source = module._modules[name], _child(source, name)
        return self.candidates.accepts(self.tx, module, source)


def test_twins_are_candidates_from_the_first_on():
    asker = Asker(Stack([Block(4) for _ in range(3)]))
    assert [asker.accepts(f"layers.{k}") for k in range(3)] == [True] * 3


def test_a_module_without_a_twin_is_none():
    asker = Asker(Stack([Block(4), Block(8), nn.Sequential(nn.Linear(4, 4), nn.ReLU())]))
    assert [asker.accepts(f"layers.{k}") for k in range(3)] == [False] * 3


@pytest.mark.parametrize(
    "other",
    [
        lambda: Block(8),
        lambda: Block(4).to(torch.float64),
        lambda: Block(4).eval(),
        lambda: Block(4).requires_grad_(False),
        lambda: type("Other", (Block,), {})(4),
    ],
    ids=["size", "dtype", "training", "requires grad", "class"],
)
def test_what_makes_another_shape(other):
    asker = Asker(Stack([Block(4), other()]))
    assert [asker.accepts("layers.0"), asker.accepts("layers.1")] == [False, False]


def test_single_modules_are_no_blocks():
    asker = Asker(nn.ModuleList(nn.Linear(4, 4) for _ in range(4)))
    assert not any(asker.accepts(str(k)) for k in range(4))


def test_a_module_that_is_called_again_is_a_candidate():
    asker = Asker(Stack([Block(4)]))
    assert [asker.accepts("layers.0") for _ in range(3)] == [False, True, True]


def test_a_block_that_repeats_inside_candidates_only_has_no_twin_outside():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(Stack([Block(4), Block(8)]) for _ in range(3))
            self.last = Block(4)

    asker = Asker(Model())
    assert asker.accepts("layers.0")
    assert not asker.accepts("last")


def test_inside_a_candidate_it_takes_more_twins():
    layers = [Stack([Block(4) for _ in range(2)] + [Block(8) for _ in range(4)]) for _ in range(2)]
    asker = Asker(Stack(layers))
    assert asker.accepts("layers.0")
    with asker.candidates.inside(layers[0]):
        assert not asker.accepts("layers.0.layers.0")
        assert all(asker.accepts(f"layers.0.layers.{k}") for k in range(2, 6))
    assert asker.accepts("layers.1")


def test_inside_a_candidate_it_takes_as_many_calls_of_a_module():
    layers = [Stack([Block(4)]) for _ in range(2)]
    asker = Asker(Stack(layers))
    with asker.candidates.inside(layers[0]):
        assert [asker.accepts("layers.0.layers.0") for _ in range(5)] == [False, False, False, True, True]


def test_what_will_not_change_refuses_at_once():
    model = Stack([Block(4) for _ in range(3)])
    for reason in ReuseMissReason:
        asker = Asker(model)
        assert asker.accepts("layers.0")
        asker.candidates.learn(model.layers[0], False, reason)
        assert asker.accepts("layers.1") == (reason not in candidates._FINAL)
        assert asker.candidates.has_refused(model.layers[1]) == (reason in candidates._FINAL)


def test_a_shape_that_is_only_traced_is_left_alone():
    model = Stack([Block(4) for _ in range(12)])
    asker = Asker(model)
    tried = 0
    while asker.accepts(f"layers.{tried}"):
        asker.candidates.learn(model.layers[tried], False, ReuseMissReason.GUARD_FAILS)
        tried += 1
    assert tried == 4


def test_a_shape_whose_traces_are_reused_once_each_is_left_alone():
    model = Stack([Block(4) for _ in range(40)])
    asker = Asker(model)
    tried = 0
    while asker.accepts(f"layers.{tried}"):
        asker.candidates.learn(model.layers[tried], tried % 2 == 1, ReuseMissReason.GUARD_FAILS)
        tried += 1
    # As much as four traces lose: each of nine pairs loses a third of a trace, and the tenth trace the rest.
    assert tried == 19


def test_a_shape_that_is_reused_now_and_then_is_kept():
    model = Stack([Block(4) for _ in range(20)])
    asker = Asker(model)
    for k in range(20):
        assert asker.accepts(f"layers.{k}")
        asker.candidates.learn(model.layers[k], k % 3 > 0, None)


def test_elements_of_a_list_have_their_twins_there():
    parts = [Block(4) for _ in range(3)]
    asker = Asker(parts)
    found = [asker.candidates.accepts(asker.tx, part, GetItemSource(SELF, k)) for k, part in enumerate(parts)]
    assert found == [True] * 3


def test_no_module_is_looked_at_twice(monkeypatch):
    model = Stack([Block(4) for _ in range(50)])
    asker, looked_at = Asker(model), []
    number = candidates._Structures._number

    def noted(self, module):
        looked_at.append(module)
        return number(self, module)

    monkeypatch.setattr(candidates._Structures, "_number", noted)
    for k in range(50):
        assert asker.accepts(f"layers.{k}")
    assert len(looked_at) == len(set(looked_at)) == len(list(model.modules()))


@pytest.mark.parametrize(
    ("variable", "value"), [("TORCHDYNAMO_USE_GRAPH_DEDUPLICATION", True), ("TORCH_REGIONS_AUTOMATIC", False)]
)
def test_environment_variables_set_the_defaults(variable, value):
    option = {"TORCH_REGIONS_AUTOMATIC": "automatic_nested_compile_regions"}.get(variable, "use_graph_deduplication")
    code = f"import torch._dynamo; print(torch._dynamo.config.{option})"
    for given in (not value, value):
        env = {**os.environ, variable: str(int(given))}
        found = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        assert found.stdout.strip() == str(given)


def test_who_has_set_the_flag_keeps_it():
    before = torch._dynamo.config.use_graph_deduplication  # the tests may run with the flag on
    with torch._dynamo.config.patch(use_graph_deduplication=not before):
        assert torch._dynamo.config.use_graph_deduplication is not before
    assert torch._dynamo.config.use_graph_deduplication is before


def test_a_training_flag_may_be_any_object():
    model = Stack([Block(4) for _ in range(4)])
    for layer in model.layers:
        layer.training = [True]
    with torch._dynamo.config.patch(use_graph_deduplication=True):
        torch.compile(model, backend="eager", fullgraph=True)(torch.ones(2, 4))
