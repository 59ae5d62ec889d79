"""Layers whose operands differ in where they begin in their storage: steps of time, and rows of a table."""

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.regions.keys import tensor_key
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensorMode


LAYERS = 6


def plain(h, row):
    return h + row.sin() * row


def viewed(h, row):
    return h + row.unflatten(-1, (2, 4)).transpose(-1, -2)[..., 1:].flatten(-2).cos().sum()


def strided(h, row):
    return h + row.as_strided((4, 8), (8, 1), 3)


def bits(h, row):
    return h + row.view(torch.int32).bitwise_and(-8).view(torch.float32)


def complex_pairs(h, row):
    return h + torch.view_as_real(torch.view_as_complex(row.unflatten(-1, (4, 2))) * 1j).flatten(-2)


@torch.library.custom_op("storage_offsets::begin", mutates_args=())
def begin(x: torch.Tensor) -> torch.Tensor:
    return x * (1 + x.storage_offset())


@begin.register_fake
def _(x):
    return torch.empty_like(x)


def own_operator(h, row):
    return h + begin(row.detach())


class Layer(nn.Module):
    def __init__(self, fn):
        super().__init__()
        self.fn, self.first, self.second = fn, nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, h, *rows):
        return h + self.second(self.fn(self.first(h).tanh(), *rows)).sigmoid()


def rows(table, i):
    return (table[i],)


def slices(table, i):
    return (table.flatten()[i * 3 : i * 3 + 32].view(4, 8),)


def neighbours(table, i):
    return table[i], table[i + 1]


class Model(nn.Module):
    def __init__(self, fn, taken):
        super().__init__()
        torch.manual_seed(0)
        self.layers, self.taken = nn.ModuleList(Layer(fn) for _ in range(LAYERS)), taken

    def forward(self, h, table):
        h = h.cos()
        for i, layer in enumerate(self.layers):
            h = layer(h, *self.taken(table, i))
        return h


def step(fn, model, training):
    torch.manual_seed(1)
    h, table = torch.randn(4, 8, requires_grad=training), torch.randn(8, 4, 8, requires_grad=training)
    with torch.set_grad_enabled(training):
        result = fn(h, table)
    if not training:
        return [result]
    model.zero_grad()
    result.sum().backward()
    return [result.detach(), h.grad, table.grad, *(p.grad.clone() for p in model.parameters())]


def outcome(fn, taken=rows, *, training=False, backend="eager", verify=False, flag=True):
    """What a step gives, and how many calls were reused."""
    torch._dynamo.reset()
    counters.clear()
    model = Model(fn, taken)
    with torch._dynamo.config.patch(use_graph_deduplication=flag, verify_region_reuse=verify):
        found = step(torch.compile(model, backend=backend, fullgraph=True), model, training)
    torch.testing.assert_close(found, step(model, model, training))
    return found, counters["regions"]["reused"]


def reuses(*args, **kwargs):
    found, reused = outcome(*args, **kwargs)
    flat, _ = outcome(*args, **kwargs, flag=False)
    torch.testing.assert_close(found, flat, rtol=0, atol=0)
    outcome(*args, **kwargs, verify=True)
    return reused


@pytest.mark.parametrize("fn", [plain, viewed])
@pytest.mark.parametrize("taken", [rows, slices])
@pytest.mark.parametrize("training", [False, True])
def test_reused(fn, taken, training):
    assert reuses(fn, taken, training=training) == LAYERS - 1


@pytest.mark.parametrize("fn", [strided, bits, complex_pairs, own_operator])
def test_an_operator_that_sees_where_its_operand_begins(fn):
    assert reuses(fn) == 0


def test_an_operator_that_sees_where_its_operand_begins_in_training():
    assert reuses(strided, training=True) == 0


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("strides", [(8, 1), (4, 1)])
def test_the_gradient_where_all_layers_see_one_offset(strides, backend):
    """It is right only if the body's backward is traced with an operand that begins where the calls' operand does."""

    class OfOneRow(Model):
        def forward(self, h, table):
            h, row = h.cos(), table[3]
            for layer in self.layers:
                h = layer(h, row)
            return h

    model = OfOneRow(lambda h, row: h + row.as_strided((4, 8), strides, 97).sin(), rows)
    torch._dynamo.reset()
    counters.clear()
    with torch._dynamo.config.patch(use_graph_deduplication=True):
        found = step(torch.compile(model, backend=backend, fullgraph=True), model, True)
    torch.testing.assert_close(found, step(model, model, True))
    assert counters["regions"]["reused"] == LAYERS - 1


def test_checkpoint_of_what_sees_where_its_operand_begins():
    def checkpointed(h, row):
        return torch.utils.checkpoint.checkpoint(strided, h, row, use_reentrant=False)

    assert reuses(checkpointed, training=True) == 0


def test_an_operator_that_sees_where_a_value_of_the_layer_begins():
    def inside(h, row):
        return h + (row * 2).as_strided((4, 8), (1, 4))

    assert reuses(inside) == LAYERS - 1


def test_operands_in_one_storage():
    assert reuses(lambda h, row, other: h + row * other.cos(), neighbours) == LAYERS - 1


def test_operands_whose_distance_differs():
    def first_and(table, i):
        return table[0], table[i + 1]

    assert reuses(lambda h, row, other: h + row * other.cos(), first_and) == 0


def test_a_write_to_the_row_that_the_next_layer_reads():
    def writes(h, row, other):
        other.mul_(h.detach())
        return h + row

    class Copying(Model):
        def forward(self, h, table):
            return super().forward(h, table.clone())

    torch.manual_seed(0)
    model = Copying(writes, neighbours)
    with torch.no_grad():
        expected = step(model, model, False)
        for verify in (False, True):
            torch._dynamo.reset()
            with torch._dynamo.config.patch(use_graph_deduplication=True, verify_region_reuse=verify):
                torch.testing.assert_close(step(torch.compile(model, backend="aot_eager"), model, False), expected)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("fn", [plain, viewed, strided, complex_pairs])
def test_backends(backend, fn):
    outcome(fn, training=True, backend=backend)
    outcome(fn, slices if fn is not complex_pairs else rows, training=True, backend=backend, verify=True)


def test_saved_view_of_an_operand():
    """A partitioned forward returns ``row.t()``, a view of the operand of this call, not of the first call's."""

    def projected(h, row):
        return h @ row.reshape(4, 8)[:, :4].t().contiguous().repeat(2, 1) @ row

    for verify in (False, True):
        _, reused = outcome(projected, training=True, backend="aot_eager", verify=verify)
        assert verify or reused == LAYERS - 1


class Recurrent(nn.Module):
    """A loop over time; ``first``: whether time is the first dimension."""

    def __init__(self, first):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.given, self.kept = first, nn.Linear(8, 24), nn.Linear(8, 24)

    def cell(self, x, h):
        reset, update, new = self.given(x).chunk(3, -1)
        kept_reset, kept_update, kept_new = self.kept(h).chunk(3, -1)
        update = torch.sigmoid(update + kept_update)
        new = torch.tanh(new + torch.sigmoid(reset + kept_reset) * kept_new)
        return (1 - update) * new + update * h

    def forward(self, x):
        steps = x.unbind(0) if self.first else [x[:, t] for t in range(x.shape[1])]
        h, found = x.new_zeros(steps[0].shape), []
        for given in steps:
            h = self.cell(given, h)
            found.append(h)
        return torch.stack(found)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_steps_of_time(first, dynamic, backend):
    torch._dynamo.reset()
    counters.clear()
    model = Recurrent(first)
    model.cell = torch.compiler.nested_compile_region(model.cell)
    with torch._dynamo.config.patch(use_graph_deduplication=True):
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        for batch in (3, 5):
            x = torch.randn((6, batch, 8) if first else (batch, 6, 8))
            if dynamic:
                torch._dynamo.mark_dynamic(x, 1 if first else 0)
            torch.testing.assert_close(compiled(x), model(x))
            if batch == 3:
                assert counters["regions"]["reused"] == 4  # h of the first step needs no gradient
    assert counters["stats"]["unique_graphs"] == (1 if dynamic else 2)


def test_key_has_the_alignment_where_it_matters():
    with FakeTensorMode() as mode:
        for device, same in (("cpu", True), ("meta", False)):
            table = mode.from_tensor(torch.ones(64)).to(device)
            assert tensor_key(table[4:8]) == tensor_key(table[8:12])
            assert (tensor_key(table[4:8]) == tensor_key(table[1:5])) is same
