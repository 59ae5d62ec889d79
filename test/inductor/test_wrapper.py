"""Inductor's wrappers that cannot call a region get none: the program compiles as without the flag."""

import pytest
import torch
import torch._dynamo
import torch._inductor.config
from torch._dynamo.utils import counters


def _block(x, w):
    return x + torch.nn.functional.gelu(x @ w).tanh().cos() * 0.5


def _program(x, ws, block=_block):
    for w in ws:
        x = block(x, w)
    return x


@pytest.mark.parametrize("how", ["config", "options"])
def test_cpp_wrapper_has_no_code_for_a_region(how):
    x, ws = torch.randn(4, 4), [torch.randn(4, 4, requires_grad=True) for _ in range(4)]
    torch._dynamo.reset()
    counters.clear()
    options = {"cpp_wrapper": True} if how == "options" else None
    with (
        torch._dynamo.config.patch(use_graph_deduplication=True),
        torch._inductor.config.patch(cpp_wrapper=how == "config"),
    ):
        got = torch.compile(_program, options=options, fullgraph=True)(x, ws)
        grads = torch.autograd.grad(got.sum(), ws)
    assert counters["graph_deduplication"]["calls"] > 0
    wanted = _program(x, ws)
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(grads, torch.autograd.grad(wanted.sum(), ws))


def test_aot_inductor_packages_an_exported_program_with_regions(tmp_path):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.ws = torch.nn.ParameterList(torch.randn(4, 4) for _ in range(4))

        def forward(self, x):
            return _program(x, list(self.ws), block)

    block = torch.compiler.nested_compile_region(_block)
    model, x = Model(), torch.randn(4, 4)
    torch._dynamo.reset()
    with torch.no_grad():
        program = torch.export.export(model, (x,), strict=True)
        assert "invoke_subgraph" in str(program.graph)
        path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "m.pt2"))
        loaded = torch._inductor.aoti_load_package(path)
        torch.testing.assert_close(loaded(x), model(x))
        # The program itself keeps its regions.
        torch.testing.assert_close(program.module()(x), model(x))
