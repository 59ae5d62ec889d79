"""Operators that are composed of one with an effect are in no body: AOTAutograd gives such an operator a token."""

import subprocess
import sys

import pytest
import torch
import torch._dynamo
from testing.training_steps import train
from torch import nn
from torch._dynamo.regions.outline.legality import _CHECKS_FOR_ERRORS
from torch._dynamo.utils import counters


# In a process of its own, because torch's samples forbid to change global settings in the process that imports them.
_SAMPLES = """
import torch
from torch._higher_order_ops.effects import _get_effect
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode

class Effects(TorchDispatchMode):
    found = False
    def __torch_dispatch__(self, func, kinds, args=(), kwargs=None):
        self.found = self.found or _get_effect(func) is not None
        return func(*args, **(kwargs or {}))

def has_effect(info):
    for sample in info.sample_inputs("cpu", torch.float32):
        with Effects() as effects:
            try:
                info(sample.input, *sample.args, **sample.kwargs)
            except (RuntimeError, ValueError, TypeError):
                continue  # an operator that is not for these inputs, or not built here
        if effects.found:
            return True
    return False

parts = ("linalg", "inv", "chol", "lu", "matrix", "solve")
asked = [info for info in op_db if any(part in info.name for part in parts)]
print(*(info.name.replace(".", "_") for info in asked if has_effect(info)))
"""


def test_every_operator_of_torch_with_an_effect_inside_is_known():
    """Of torch's own samples; linear algebra is where there are such operators."""
    done = subprocess.run([sys.executable, "-c", _SAMPLES], capture_output=True, text=True, check=True)
    found = set(done.stdout.split())
    assert {"linalg_cholesky", "linalg_solve"} <= found
    assert found <= _CHECKS_FOR_ERRORS
    # The rest are names of the same operators.
    assert _CHECKS_FOR_ERRORS - found == {"inverse", "matrix_power"}


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        h = self.linear(x).tanh()
        definite = h.mT @ h + torch.eye(4) * 4
        return x + torch.linalg.solve(definite, x.mT).mT.sin() + torch.linalg.cholesky(definite).cos() * 0.1


def _model():
    return nn.Sequential(*(Layer() for _ in range(4)))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_layers_with_such_operators_are_compiled(backend):
    x = torch.linspace(-1, 1, 16).view(4, 4)
    wanted = train(_model, x, backend, flag=False)
    counters.clear()
    torch.testing.assert_close(train(_model, x, backend, flag=True), wanted)
    assert counters["graph_deduplication"]["operators_outlined"], "what is around them is in bodies"
