"""What a report says of a call whose arguments no earlier call had."""

import pytest
import torch
import torch._dynamo
from torch._dynamo.regions.facts import facts
from torch._dynamo.regions.trace.differences import arguments_differ


def layer(x, k=1, mode=None):
    return (x.sin() * k).cos().tan()


def _without_grad(f, x, w):
    with torch.no_grad():
        return f(x)


def _under_autocast(f, x, w):
    with torch.autocast("cpu", torch.bfloat16):
        return f(x)


CASES = {
    "more": (lambda f, x, w: f(x, 1), "2 arguments, 1 in the earlier call"),
    "stride": (lambda f, x, w: f(x.t()), "argument 'x': stride (1, 4), (4, 1) in the earlier call"),
    "shape": (lambda f, x, w: f(x[:2]).sum(), "argument 'x': shape (2, 4), (4, 4) in the earlier call"),
    "dtype": (lambda f, x, w: f(x.double()), "argument 'x': dtype torch.float64, torch.float32 in the earlier call"),
    "gradient": (lambda f, x, w: f(x * w), "argument 'x': requires_grad True, False in the earlier call"),
    "view": (lambda f, x, w: f(x.view(4, 4)), "argument 'x': what is known of it differs"),
    "by_name": (lambda f, x, w: f(x, k=x), "2 arguments, 1 in the earlier call"),
    "no_grad": (_without_grad, "in another grad mode"),
    "autocast": (_under_autocast, "in another autocast"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_differs_in_the_arguments(case):
    second, wanted = CASES[case]
    torch._dynamo.reset()
    marked = torch.compiler.nested_compile_region(layer)

    def f(x, w):
        return marked(x) + second(marked, x, w)

    torch.compile(f, backend="eager")(torch.randn(4, 4), torch.randn(4, 4, requires_grad=True))
    call = facts()[-1].in_order()[1]
    assert (call.miss.name, call.miss_detail) == ("ARGUMENTS_DIFFER", wanted)


def test_a_constant_is_said_as_the_program_writes_it():
    torch._dynamo.reset()
    marked = torch.compiler.nested_compile_region(layer)
    torch.compile(lambda x: marked(x, 0.5) + marked(x, 0.25), backend="eager")(torch.randn(4))
    assert facts()[-1].in_order()[1].miss_detail == "constant 1 of the arguments: 0.25, not 0.5"


def test_a_class_of_the_program_is_not_asked_whether_it_is_equal():
    class Meta(type):
        def __eq__(cls, other):
            raise AssertionError("the program never compares its classes")

        __hash__ = type.__hash__

    a, b = (Meta("A", (), {}) for _ in range(2))
    buckets = [("code", ("callee", ("behind", kind, 0)), (((True,)), None), frozenset()) for kind in (a, b)]
    assert (
        str(arguments_differ(buckets[0], buckets[1:]).detail)
        == "argument 1 is of another kind, or holds something else"
    )


def test_a_key_that_is_not_known_is_named():
    assert arguments_differ(("code", 1, 2, 3), [("code", 1, 2, 4)]).detail.startswith("what the frame has bound")
    assert arguments_differ(("code", 1, 2, 3), []).detail == ""
