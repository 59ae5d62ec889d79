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
