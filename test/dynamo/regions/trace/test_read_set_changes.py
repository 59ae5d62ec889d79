"""What is changed behind an argument is no longer what an earlier call found there, in whatever it is kept."""

import pytest
import torch
import torch._dynamo
from testing.changing_things import PROGRAMS, Counter, Plain
from torch._dynamo.regions.outcomes import ReuseMissReason, outcomes
from torch._dynamo.testing import CompileCounter
from torch._dynamo.utils import counters


X = torch.linspace(0.1, 1.0, 4)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_as_without_a_mark(make, backend):
    wanted, got = make(lambda body: body), make(torch.compiler.nested_compile_region)
    compiled = torch.compile(got, backend=backend, fullgraph=True)
    with torch.no_grad():
        for k in range(2):
            torch.testing.assert_close(compiled(X + k), wanted(X + k))


def test_cells_that_nobody_binds_are_read_for_each_call():
    layers = [Counter(2.0) for _ in range(4)]
    run = torch.compiler.nested_compile_region(lambda layer, x: x.sin() * layer.get())

    def f(x):
        for layer in layers:
            x = run(layer, x)
        return x

    torch.testing.assert_close(torch.compile(f, backend="eager", fullgraph=True)(X), f(X))
    assert counters["regions"] == {"traced": 1, "reused": 3}


def test_a_cell_of_the_body_is_bound_by_each_call():
    def stack(mark):
        counter = Counter(0)
        holder = Plain(n=3)

        def body(x):
            counter.step()
            return x.sin() * holder.n

        run = mark(body)

        def f(x):
            for _ in range(4):
                x = run(x)
            return x, counter.get()

        return f

    wanted = stack(lambda body: body)(X)
    torch.testing.assert_close(torch.compile(stack(torch.compiler.nested_compile_region), backend="eager")(X), wanted)
    assert counters["regions"]["reused"] == 2


def _with_reads(reads):
    """A frame that reads an attribute of the layers at ``reads``, which the region does not, and the layers."""
    layers = [Plain(w=torch.ones(4) * 2, kind=Plain(name="full")) for _ in range(5)]
    run = torch.compiler.nested_compile_region(lambda layer, x: x.sin() * layer.w)

    def f(x):
        x = x * 1
        for i in reads:
            if layers[i].kind.name == "full":
                x = x + 1
        for layer in layers:
            x = run(layer, x)
        return x

    return f, layers


@pytest.mark.parametrize("verified", [False, True], ids=["reused", "verified"])
def test_what_the_frame_reads_of_one_layer_is_not_guarded_in_others(verified):
    f, layers = _with_reads([0])
    frames = CompileCounter()
    compiled = torch.compile(f, backend=frames, fullgraph=True)
    with torch._dynamo.config.patch(verify_region_reuse=verified):
        compiled(X)
        layers[3].kind.name = "other"
        torch.testing.assert_close(compiled(X), f(X))
        assert frames.frame_count == 1
        # The second call is traced too, and is the one that the others are stamped out of.
        assert counters["regions"]["verified" if verified else "reused"] == 3
        assert ReuseMissReason.READ_BY_FRAME in [call.miss for call in outcomes()]
        layers[0].kind.name = "other"
        torch.testing.assert_close(compiled(X), f(X))
        assert frames.frame_count == 2


@pytest.mark.parametrize("verified", [False, True], ids=["reused", "verified"])
def test_what_the_frame_reads_of_each_layer_keeps_no_call_from_being_reused(verified):
    f, layers = _with_reads(range(5))
    frames = CompileCounter()
    compiled = torch.compile(f, backend=frames, fullgraph=True)
    with torch._dynamo.config.patch(verify_region_reuse=verified):
        compiled(X)
    assert counters["regions"]["verified" if verified else "reused"] == 4
    layers[3].kind.name = "other"
    torch.testing.assert_close(compiled(X), f(X))
    assert frames.frame_count == 2


@pytest.mark.parametrize("verified", [False, True])
def test_a_cell_that_the_frame_binds_is_not_read_for_a_function_of_another_call(verified):
    """The function is an argument that Dynamo realizes in the call. Its cells were taken to be in the key."""

    def stack(mark):
        counters_of_layers = [Counter(2.0) for _ in range(5)]
        run = mark(lambda get, x: x.sin() * get())

        def f(x):
            for k, counter in enumerate(counters_of_layers):
                if k == 3:
                    counter.step()
                x = run(counter.get, x)
            return x

        return f

    wanted, got = stack(lambda body: body), stack(torch.compiler.nested_compile_region)
    with torch._dynamo.config.patch(verify_region_reuse=verified):
        torch.testing.assert_close(torch.compile(got, backend="eager", fullgraph=True)(X), wanted(X))
