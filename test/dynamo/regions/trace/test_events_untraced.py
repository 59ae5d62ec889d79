"""Code of the program that Dynamo runs, or calls as an operator, without tracing it: no guard says what it reads."""

import pytest
import torch
import torch._dynamo
from testing.deferred_programs import Plain
from torch._dynamo.utils import counters


X = torch.linspace(0.1, 1.0, 4)


class Decides(type):
    """Looks into an object to say whether it is one of its own."""

    def __instancecheck__(cls, instance):
        return instance.kept == 1


class Chosen(metaclass=Decides):
    pass


class Asked(Plain):
    @torch._dynamo.assume_constant_result
    def constant(self):
        return self.kept + 2.0


def as_operator(mark, kept):
    def scale(x):
        return x * (kept + 2.0)

    return mark(scale)


BODIES = {
    "instancecheck": lambda layer, x: x.sin() * (2.0 if isinstance(layer, Chosen) else 3.0),
    "assume_constant_result": lambda layer, x: x.sin() * layer.constant(),
    "allow_in_graph": lambda layer, x: layer.allowed(x.sin()),
    "nonstrict_trace": lambda layer, x: layer.nonstrict(x.sin()),
}


@pytest.mark.parametrize("what", BODIES)
def test_untraced_code_is_run_for_each_layer(what):
    # The functions are copies of one code, which is all that Dynamo guards of them.
    allowed = [as_operator(torch._dynamo.allow_in_graph, k) for k in range(2)]
    nonstrict = [as_operator(torch._dynamo.nonstrict_trace, k) for k in range(2)]
    layers = [Asked(kept=k, allowed=allowed[k], nonstrict=nonstrict[k]) for k in (0, 1, 0, 1)]

    def f(x):
        for layer in layers:
            x = marked(layer, x)
        return x

    marked = torch.compiler.nested_compile_region(BODIES[what])
    torch.testing.assert_close(torch.compile(f, backend="eager", fullgraph=True)(X), f(X))


def test_a_constant_that_needs_no_object_is_the_same_for_all_calls():
    """That is what assume_constant_result promises."""

    @torch._dynamo.assume_constant_result
    def constant():
        return 2.0

    @torch.compiler.nested_compile_region
    def marked(x):
        return x.sin() * constant()

    def f(x):
        return marked(marked(marked(x)))

    torch.testing.assert_close(torch.compile(f, backend="eager", fullgraph=True)(X), f(X))
    assert counters["regions"]["reused"] == 2


@torch._dynamo.config.patch(verify_region_reuse=True)
def test_operators_of_nonstrict_trace_are_verified():
    """Each call has a function and attributes of the graph of its own, by other names."""
    double = as_operator(torch._dynamo.nonstrict_trace, 0)
    marked = torch.compiler.nested_compile_region(lambda x: double(x.sin()))

    def f(x):
        return marked(marked(marked(x)))

    torch.testing.assert_close(torch.compile(f, backend="eager", fullgraph=True)(X), f(X))
    assert counters["regions"]["verified"]
