"""With regions, what is there when a compile begins is set aside from the garbage collector until it ends."""

import functools
import gc

import pytest
import torch
import torch._dynamo
from torch._inductor import compile_fx
from torch._inductor import config as inductor_config


pytestmark = pytest.mark.usefixtures("bodies")
X = torch.randn(4)


@torch.compiler.nested_compile_region
def marked(x):
    return x.sin()


def frozen_meanwhile(flag, fails=False, function=torch.sin):
    """How many objects are set aside when the backend is called."""
    seen = []

    def backend(graph, inputs):
        seen.append(gc.get_freeze_count())
        if fails:
            raise KeyError("backend")
        return graph.forward

    torch._dynamo.reset()
    with torch._dynamo.config.patch(use_graph_deduplication=flag):
        compiled = torch.compile(lambda x: function(x) + 1, backend=backend)
        if fails:
            with pytest.raises(Exception, match="backend"):
                compiled(X)
        else:
            torch.testing.assert_close(compiled(X), X.sin() + 1)
    assert len(seen) == 1
    return seen[0]


def test_only_with_regions():
    assert frozen_meanwhile(True) > 0
    assert gc.get_freeze_count() == 0
    assert frozen_meanwhile(False) == 0
    assert frozen_meanwhile(False, function=marked) > 0
    assert gc.get_freeze_count() == 0


def test_all_is_as_before_when_the_compile_fails():
    for flag, function in ((True, torch.sin), (False, marked)):
        before = gc.get_threshold()
        assert frozen_meanwhile(flag, fails=True, function=function) > 0
        assert gc.get_freeze_count() == 0
        assert gc.get_threshold() == before


def test_a_compile_inside_a_compile():
    seen = []

    def inner(graph, inputs):
        seen.append(gc.get_freeze_count())
        return graph.forward

    def outer(graph, inputs):
        torch.compile(torch.cos, backend=inner)(X)
        return inner(graph, inputs)

    compiled = torch.compile(lambda x: marked(x) + 1, backend=outer)
    torch.testing.assert_close(compiled(X), X.sin() + 1)
    assert len(seen) == 2
    assert min(seen) > 0
    assert gc.get_freeze_count() == 0


def test_what_the_program_has_set_aside_stays_so():
    gc.freeze()
    try:
        before = gc.get_freeze_count()
        assert frozen_meanwhile(True) <= before
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def test_a_collector_that_is_off_stays_off():
    gc.disable()
    try:
        assert frozen_meanwhile(True) == 0
        assert not gc.isenabled()
    finally:
        gc.enable()


@inductor_config.patch(force_disable_caches=True)
def test_a_backward_that_is_compiled_later():
    compile_inner, seen = compile_fx.compile_fx_inner, []

    def noted(gm, inputs, **kwargs):
        seen.append((kwargs.get("is_backward", False), gc.get_freeze_count() > 0, gc.get_threshold()[0]))
        return compile_inner(gm, inputs, **kwargs)

    before = gc.get_threshold()
    for function, flag in ((marked, True), (marked, False), (torch.sin, False)):
        torch._dynamo.reset()
        seen.clear()
        x = X.clone().requires_grad_()
        with torch._dynamo.config.patch(use_graph_deduplication=flag):
            backend = functools.partial(compile_fx.compile_fx, inner_compile=noted)
            result = torch.compile(lambda x: function(x) * 2, backend=backend)(x)
            assert gc.get_freeze_count() == 0
            result.sum().backward()
        torch.testing.assert_close(x.grad, 2 * X.cos())
        aside = function is marked
        assert [(backward, there) for backward, there, _ in seen] == [(False, aside), (True, aside)]
        assert all((threshold > before[0]) == aside for _, _, threshold in seen)
        assert gc.get_freeze_count() == 0
        assert gc.get_threshold() == before


@inductor_config.patch(force_disable_caches=True)
def test_a_backward_that_cannot_be_compiled_leaves_the_collector_as_it_was():
    def fails(gm, inputs, **kwargs):
        if kwargs.get("is_backward", False):
            raise KeyError("no backward")
        return compile_fx.compile_fx_inner(gm, inputs, **kwargs)

    before = gc.get_threshold()
    backend = functools.partial(compile_fx.compile_fx, inner_compile=fails)
    result = torch.compile(lambda x: marked(x) * 2, backend=backend)(X.clone().requires_grad_())
    with pytest.raises(Exception, match="no backward"):
        result.sum().backward()
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == before
