"""A compile runs in a frame after which Python's stack has room; see Note [Room on Python's stack]."""

import sys

import pytest
import torch
import torch._dynamo
from torch._dynamo.region_frame import call_with_room


def test_a_call_with_room_is_the_same_call():
    def divide(a, *, by):
        return a / by

    assert call_with_room(divide, 6, by=3) == 2
    assert call_with_room(call_with_room, divide, 6, by=3) == 2
    with pytest.raises(ZeroDivisionError) as caught:
        call_with_room(divide, 6, by=0)
    assert [frame.name for frame in caught.traceback][1:] == ["call_with_room", "divide"]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="frames are objects of their own")
def test_the_backend_is_called_where_there_is_room():
    asked = []

    def backend(graph, inputs):
        frame = sys._getframe()
        while frame is not None:
            asked.append(frame.f_code.co_stacksize)
            frame = frame.f_back
        return graph.forward

    x = torch.randn(4)
    torch.testing.assert_close(torch.compile(lambda x: x.sin() + 1, backend=backend)(x), x.sin() + 1)
    assert sum(8 * size >= 2**20 for size in asked) == 1
