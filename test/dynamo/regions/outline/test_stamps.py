"""What a stamped call becomes at the end of a frame: what tracing it would have left, whatever its neighbours are."""

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.utils import counters


WAYS = ["flag", "mark"]


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def work(self, x):
        return torch.tanh(self.b(torch.tanh(self.a(x)).sin().mul(1.1).relu())) + x

    def forward(self, x):
        return self.work(x)


class BeginsWithoutGrad(Layer):
    def forward(self, x):
        with torch.no_grad():
            scale = torch.softmax(self.a(x), -1)
        return self.work(x) * scale


class EndsWithoutGrad(Layer):
    def forward(self, x):
        y = self.work(x)
        with torch.no_grad():
            self.mean = y.mean()
        return y


class EnablesGrad(Layer):
    def forward(self, x):
        with torch.enable_grad():
            return self.work(x)


def after_a_switch(layers, first, call, mark):
    x = first(x0())
    with torch.no_grad():
        position = x.cos()
    for layer in layers:
        x = call(layer, x)
    return x + position


def before_a_switch(layers, first, call, mark):
    x, seen = first(x0()), 0.0
    for number, layer in enumerate(layers):
        x = call(layer, x)
        if number == 0:
            with torch.no_grad():
                seen = x.mean()
    return x + seen


def within_a_switch(layers, first, call, mark):
    x = first(x0())
    with torch.no_grad():
        for layer in layers:
            x = call(layer, x)
    return x + first(x)


def in_pairs(layers, first, call, mark):
    def pair(one, other, x):
        y = first(x)
        with torch.no_grad():
            z = y.cos()
        return call(other, call(one, y)) + z

    x, run = first(x0()), mark(pair)
    for one, other in zip(layers[::2], layers[1::2]):
        x = run(one, other, x)
    return x


def x0():
    return torch.linspace(-1.0, 1.0, 12).view(3, 4)


def _call(layer, *args):
    return layer(*args)


def _trained(kind, program, way, backend):
    """The result, the gradients, and the grad mode after the call."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    layers, first = nn.ModuleList([kind() for _ in range(6)]), nn.Linear(4, 4)
    mark = torch.compiler.nested_compile_region if way == "mark" else lambda run: run
    call = mark(_call)
    run = lambda: program(layers, first, call, mark)  # noqa: E731
    with torch._dynamo.config.patch(use_graph_deduplication=way == "flag", graph_deduplication_lint=way != "eager"):
        out = run() if way == "eager" else torch.compile(run, backend=backend)()
    left = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    out.sum().backward()
    return out.detach(), [p.grad for p in (*layers.parameters(), *first.parameters())], left


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "program", [after_a_switch, before_a_switch, within_a_switch, in_pairs], ids=lambda p: p.__name__
)
@pytest.mark.parametrize("kind", [BeginsWithoutGrad, EndsWithoutGrad, EnablesGrad], ids=lambda k: k.__name__)
def test_a_switch_of_grad_mode_that_undoes_a_neighbours_is_each_calls_own(kind, program, way, backend):
    wanted, gradients, _ = _trained(kind, program, "eager", None)
    got, found, left = _trained(kind, program, way, backend)
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(found, gradients)
    assert left and counters["regions"]["reused"]


class WithANumber(Layer):
    def forward(self, x):
        k = torch.tensor(2)
        a = self.work(x)
        r = torch.bernoulli(torch.full_like(a, 0.5))  # in no body: it cuts the layer in two
        return torch.tanh(self.work(a * r)[k] + a), self.a(x) * k


@pytest.mark.parametrize("way", WAYS)
def test_a_copied_tensor_has_the_number_that_is_known_of_it(way):
    torch.manual_seed(0)
    layers = nn.ModuleList([WithANumber() for _ in range(7)])
    call = torch.compiler.nested_compile_region(_call) if way == "mark" else _call

    def program(x):
        other = 0.0
        for number, layer in enumerate(layers):
            x, y = call(layer, x)
            if number > 3:  # so that some stamps return more than others
                other = other + y.sum()
        return x, other

    x = x0().requires_grad_()
    torch.manual_seed(1)
    wanted = program(x)
    torch.manual_seed(1)
    with torch._dynamo.config.patch(use_graph_deduplication=way == "flag", graph_deduplication_lint=True):
        torch.testing.assert_close(torch.compile(program, backend="aot_eager", fullgraph=True)(x), wanted)
    assert counters["regions"]["reused"]


class Draws(Layer):
    def forward(self, x):
        return self.work(x), torch.rand(3, 4)


class Reads(Layer):
    def forward(self, x, numbers):
        return self.work(x), numbers * 2


# Which of the numbers that the readers make are used.
USED = {"none": (), "the first": (0,), "a late one": (3,), "some": (1, 3), "the last": (4,)}


def _drawn(used, way, backend):
    torch._dynamo.reset()
    torch.manual_seed(0)
    drawing, reading = (nn.ModuleList([kind() for _ in range(5)]) for kind in (Draws, Reads))
    mark = torch.compiler.nested_compile_region if way == "mark" else lambda run: run
    draw, read = mark(lambda layer, x: layer(x)), mark(lambda layer, x, numbers: layer(x, numbers))

    def program(x):
        kept = []
        for number, (one, other) in enumerate(zip(drawing, reading)):
            x, numbers = draw(one, x)
            x, made = read(other, x, numbers)
            kept += [made] if number in used else []
        return x, kept, torch.rand(2)

    with torch._dynamo.config.patch(use_graph_deduplication=way == "flag", graph_deduplication_lint=True):
        compiled = torch.compile(program, backend=backend)
        torch.manual_seed(1)
        return compiled(x0().requires_grad_()), torch.rand(2)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("used", USED.values(), ids=USED)
def test_a_draw_that_another_call_reads_to_no_effect_is_drawn_as_in_the_flat_program(used, way, backend):
    torch.testing.assert_close(_drawn(used, way, backend), _drawn(used, "flat", backend))


@pytest.mark.parametrize("changed", [0, 1, 2])
def test_operators_after_a_stamp_see_what_the_frame_has_made_of_its_result(changed):
    """With the metadata that the layer gave, the sums of a result and of a transposed one would be one body."""
    layers = nn.ModuleList(Layer() for _ in range(4))

    def program(x):
        total = 0
        for number, layer in enumerate(layers):
            y = layer(x)
            if number == changed:
                y.t_()
            total = total + (y.reshape(-1).sin().exp().cos().tanh().exp() * torch.arange(8.0)).cumsum(0).sin().exp()
        return total

    x = torch.linspace(-1, 1, 8).view(2, 4)
    torch._dynamo.reset()
    counters.clear()
    with torch.no_grad(), torch._dynamo.config.patch(use_graph_deduplication=True):
        found = torch.compile(program, backend="aot_eager", fullgraph=True)(x)
        torch.testing.assert_close(found, program(x))
    assert counters["regions"]["reused"]
