"""What goes wrong while a call is compared with earlier ones: the call is traced, and the log says so."""

import pytest
import torch
import torch._dynamo
from torch._dynamo.regions.trace import call, save
from torch._dynamo.utils import counters


X = torch.linspace(0.1, 1.0, 4)
FAILING = {
    "comparing its arguments failed": (call, "Arguments"),
    "looking for an earlier call failed": (call, "find"),
    "reading what it depends on failed": (save, "_condition"),
    "stamping it out failed": (call, "stamp_out"),
}


@pytest.mark.parametrize("said", FAILING)
def test_a_comparison_that_fails_is_no_compile_that_fails(said, monkeypatch, caplog):
    def fails(*args, **kwargs):
        raise NameError("not in the program")

    monkeypatch.setattr(*FAILING[said], fails)
    run = torch.compiler.nested_compile_region(lambda x: x.sin().cos() + 1)
    compiled = torch.compile(lambda x: run(run(run(x))), backend="eager", fullgraph=True)
    with torch._dynamo.config.patch(verify_region_reuse=False):
        found = compiled(X)
    wanted = X
    for _ in range(3):
        wanted = wanted.sin().cos() + 1
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    assert counters["regions"]["traced"] == 3
    assert any(said in record.getMessage() for record in caplog.records)


class Counting(type):
    """The metaclass of a class that cannot be compared without running code of the program."""

    runs = 0

    def __eq__(cls, other):
        Counting.runs += 1
        return cls is other

    __hash__ = None


class Config(metaclass=Counting):
    pass


class Configured(torch.nn.Module):
    """It is given a configuration that it does not read."""

    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x, config):
        return x + self.b(self.a(x).tanh())


def test_a_class_of_the_program_is_known_by_identity():
    layers, config = torch.nn.ModuleList(Configured() for _ in range(4)), Config()

    def program(x):
        for layer in layers:
            x = layer(x, config)
        return x

    ran = []
    for flag in (False, True):
        torch._dynamo.reset()
        counters.clear()
        Counting.runs = 0
        with torch._dynamo.config.patch(use_graph_deduplication=flag):
            found = torch.compile(program, backend="eager", fullgraph=True)(X)
        ran.append(Counting.runs)
        torch.testing.assert_close(found, program(X))
    assert counters["regions"]["reused"]
    assert ran[0] == ran[1]
