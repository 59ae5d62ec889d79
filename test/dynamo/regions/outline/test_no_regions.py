"""A frame with layers alike and no region says why, once; other frames say nothing."""

import pytest
import torch
import torch._dynamo
from testing.reported_programs import Layers, compiled_once
from torch._dynamo.regions.facts import facts
from torch._dynamo.regions.outline import no_regions
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint


region = torch.compiler.nested_compile_region


@pytest.fixture(autouse=True)
def first_time(monkeypatch):
    monkeypatch.setattr(no_regions, "_told", set())


@pytest.fixture
def flag():
    with torch._dynamo.config.patch(use_graph_deduplication=True):
        yield


class _Checkpointed(Layers):
    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x


class _Random(torch.nn.Module):
    """A layer in which random numbers are drawn everywhere."""

    def __init__(self):
        super().__init__()
        self.drops = torch.nn.ModuleList(torch.nn.AlphaDropout(0.5) for _ in range(6))

    def forward(self, x):
        for drop in self.drops:
            x = drop(x) + 1
        return x


class _Sequence(torch.nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


@region
def draws(x):
    return torch.nn.functional.alpha_dropout(x, 0.5, True)


@region
def sine(x):
    return x.sin() + 1


def _warnings():
    return [record.warning for record in facts() if record.warning]


REFUSED = {
    "GUARD_FAILS": lambda: Layers([0.1, 0.2, 0.3, 0.4]),
    "RANDOM": lambda: _Sequence(_Random(), _Random()),
    "RANDOM in a checkpoint": lambda: _Checkpointed([0.1] * 3, dropout=0.5),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_layers_that_are_refused_say_why(flag, reason):
    compiled_once(REFUSED[reason]())
    (said,) = _warnings()
    assert f"none is a region: {reason.partition(' ')[0]}, " in said
    assert said.startswith("forward (")
    assert counters["regions"]["warned: no region"] == 1


def test_the_warning_says_what_differs(flag):
    compiled_once(Layers([0.1, 0.2, 0.3, 0.4]))
    (said,) = _warnings()
    assert "4 calls of Block look alike" in said
    assert "(self.layers[2].scale is 0.3, not 0.2)" in said


def test_marked_calls_that_all_stay_flat_say_why():
    torch.compile(lambda x: draws(x) + draws(x), backend="eager")(torch.ones(3))
    (said,) = _warnings()
    assert "2 calls of draws look alike, and none is a region: RANDOM, " in said


QUIET = {
    "no repeats": lambda: _Sequence(*Layers([0.1]).layers, torch.nn.Linear(8, 8)),
    "regions": lambda: Layers([0.1] * 4),
    "regions, and one layer that differs": lambda: Layers([0.1] * 4 + [0.2]),
    "layers that are too small": lambda: _Sequence(*(torch.nn.Linear(8, 8) for _ in range(4))),
    "checkpoints that are regions": lambda: _Checkpointed([0.1] * 3),
}


@pytest.mark.parametrize("program", QUIET)
def test_others_say_nothing(flag, program):
    compiled_once(QUIET[program]())
    assert not _warnings()
    assert not counters["regions"]["warned: no region"]


def test_one_marked_call_says_nothing():
    torch.compile(lambda x: draws(x) + sine(x) + sine(x), backend="eager")(torch.ones(3))
    assert not _warnings()


def test_without_flag_and_mark_nothing_is_said():
    compiled_once(Layers([0.1, 0.2, 0.3, 0.4]))
    assert not facts()


def test_a_frame_is_warned_of_once(flag):
    for _ in range(2):
        compiled_once(Layers([0.1, 0.2, 0.3, 0.4]))
    assert counters["regions"]["warned: no region"] == 1


def test_the_option_silences_it(flag):
    with torch._dynamo.config.patch(warn_without_regions=False):
        compiled_once(Layers([0.1, 0.2, 0.3, 0.4]))
    assert not _warnings()
    assert not counters["regions"]["warned: no region"]
