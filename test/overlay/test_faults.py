"""An internal error that came through an overlay file says so, and no other does."""

from __future__ import annotations

import pytest
from testing.overlay_tools import run_code


LINE = "torch-regions is on; TORCH_REGIONS=0 runs stock's code"

FAULT = """
    import torch, torch._dynamo, torch._inductor.compile_fx, importlib, sys
    from torch._dynamo.exc import BackendCompilerFailed, InternalTorchDynamoError
    where, when, backend = {where!r}, {when!r}, {backend!r}
    if where:
        module, _, name = where.partition(":")
        module = importlib.import_module(module)
        function = getattr(module, name)
        def fault(*args, **kwargs):
            raise ZeroDivisionError("injected")
        function.__code__ = compile(
            "def fault(*args, **kwargs): raise ZeroDivisionError('injected')", function.__code__.co_filename, "exec"
        ).co_consts[0]
    torch._dynamo.config.use_graph_deduplication = when == "flag"
    f = (lambda x: (x.sin() + 1).sum())
    x = torch.randn(3, requires_grad=True)
    try:
        torch.compile(f, backend=backend)(x).backward()
    except (InternalTorchDynamoError, BackendCompilerFailed) as error:
        print(type(error).__name__, {line!r} in str(error), str(error).count({line!r}))
    except Exception as error:
        print(type(error).__name__, {line!r} in str(error))
    else:
        print("none")
"""


@pytest.mark.parametrize(
    "where, when, backend, expected",
    [
        # The overlay's.
        ("torch._dynamo.regions.outline.calls:cut_out_calls", "flag", "eager", "InternalTorchDynamoError True 1"),
        ("torch._higher_order_ops.region_metadata:has_calls", "neither", "inductor", "BackendCompilerFailed True 1"),
        # Stock's.
        ("torch._dynamo.output_graph:get_unique_name_wrt", "neither", "eager", "InternalTorchDynamoError False 0"),
        (
            "torch._inductor.compile_fx:_recursive_pre_grad_passes",
            "neither",
            "inductor",
            "BackendCompilerFailed False 0",
        ),
        ("torch._inductor.compile_fx:_recursive_post_grad_passes", "neither", "inductor", "InductorError False 0"),
    ],
)
def test_an_injected_fault(where, when, backend, expected):
    result = run_code(
        FAULT.format(where=where, when=when, backend=backend, line=LINE), TORCHINDUCTOR_FORCE_DISABLE_CACHES="1"
    )
    assert result.out.strip() == expected
