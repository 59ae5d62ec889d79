"""A compile runs in a frame after which Python's stack has room; see Note [Room on Python's stack]."""

import sys

import pytest
import torch
import torch._dynamo
from torch._dynamo.regions.stack_room import call_with_room


def test_a_call_with_room_is_the_same_call():
    def divide(a, *, by):
        return a / by

    assert call_with_room(divide, 6, by=3) == 2
    assert call_with_room(call_with_room, divide, 6, by=3) == 2
    with pytest.raises(ZeroDivisionError) as caught:
        call_with_room(divide, 6, by=0)
    assert [frame.name for frame in caught.traceback][1:] == ["call_with_room", "divide"]


def _rooms():
    """How many frames with room are below this one."""
    frame, found = sys._getframe(), 0
    while frame is not None:
        found += 8 * frame.f_code.co_stacksize >= 2**20
        frame = frame.f_back
    return found


@pytest.mark.skipif(sys.version_info < (3, 11), reason="frames are objects of their own")
@pytest.mark.parametrize("flag", [True, False])
def test_under_the_flag_the_compile_has_room(flag):
    asked = []

    def backend(graph, inputs):
        asked.append(_rooms())
        return graph.forward

    x = torch.randn(4)
    torch._dynamo.reset()
    with torch._dynamo.config.patch(use_graph_deduplication=flag):
        torch.testing.assert_close(torch.compile(lambda x: x.sin() + 1, backend=backend)(x), x.sin() + 1)
    assert asked == [flag]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="frames are objects of their own")
def test_a_marked_region_is_traced_where_there_is_room():
    asked = []

    @torch._dynamo.assume_constant_result
    def ask():
        asked.append(_rooms())
        return 1

    @torch.compiler.nested_compile_region
    def inner(x):
        return x.sin() + ask()

    @torch.compiler.nested_compile_region
    def outer(x):
        return inner(x) * 2

    x = torch.randn(4)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(outer, backend="eager")(x), (x.sin() + 1) * 2)
    assert asked
    assert set(asked) == {1}
