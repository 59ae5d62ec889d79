"""Under the flag, what is there when a compile begins is set aside from the garbage collector until it ends."""

import gc

import pytest
import torch
import torch._dynamo


pytestmark = pytest.mark.usefixtures("bodies")
X = torch.randn(4)


def frozen_meanwhile(flag, fails=False):
    """How many objects are set aside when the backend is called."""
    seen = []

    def backend(graph, inputs):
        seen.append(gc.get_freeze_count())
        if fails:
            raise KeyError("backend")
        return graph.forward

    torch._dynamo.reset()
    with torch._dynamo.config.patch(use_graph_deduplication=flag):
        compiled = torch.compile(lambda x: x.sin() + 1, backend=backend)
        if fails:
            with pytest.raises(Exception, match="backend"):
                compiled(X)
        else:
            torch.testing.assert_close(compiled(X), X.sin() + 1)
    assert len(seen) == 1
    return seen[0]


def test_only_under_the_flag():
    assert frozen_meanwhile(True) > 0
    assert gc.get_freeze_count() == 0
    assert frozen_meanwhile(False) == 0


def test_all_is_as_before_when_the_compile_fails():
    assert frozen_meanwhile(True, fails=True) > 0
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
