"""A group of rows other than `core` is left out alone: by TORCH_REGIONS_GROUPS, or where the installed torch differs."""

from __future__ import annotations

import textwrap

import pytest
from testing.overlay_tools import REPO, run_code, stock_text, torch_copy

from torch_regions import _groups, _manifest


# A program with repeats, compiled under the flag, against eager; prints what is switched and how often it was outlined.
PROGRAM = """
    import torch, torch_regions
    from torch_regions import _switch
    import torch._dynamo, torch._inductor.compile_fx

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.norm = torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)

        def forward(self, x):
            return x + self.linear(self.norm(x)).relu().flip(1).reshape(x.shape)

    torch.manual_seed(0)
    model = torch.nn.Sequential(*[Block() for _ in range(4)])
    x = torch.randn(2, 8)
    expected = model(x)
    grads = torch.autograd.grad(expected.sum(), list(model.parameters()))
    with torch._dynamo.config.patch(use_graph_deduplication=True):
        found = torch.compile(model, backend=BACKEND, fullgraph=True)(x)
        found_grads = torch.autograd.grad(found.sum(), list(model.parameters()))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found_grads, grads)
    status = torch_regions.status()
    print(dict(status.left_out))
    print(sorted({row.group for row in status.rows if row.target in _switch.switched()}))
    print(torch._dynamo.utils.counters["regions"]["reused"])
"""


def _program(backend: str = "aot_eager") -> str:
    return f"BACKEND = {backend!r}\n" + textwrap.dedent(PROGRAM)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_results_are_the_same_with_the_core_alone(backend):
    result = run_code(_program(backend), TORCH_REGIONS_GROUPS="core")
    left_out, groups, reused = result.out.splitlines()[-3:]
    assert not result.warnings, result.err
    assert "TORCH_REGIONS_GROUPS does not name it" in left_out
    assert groups == "['core']" and int(reused) >= 2


def test_a_group_that_differs_from_the_installed_torch_stays_off_alone(tmp_path):
    """A changed stock function that only the cache's rows depend on."""
    name = "_functorch/_aot_autograd/autograd_cache.py"
    text = stock_text(name).replace(
        "def normalize_placeholder_names(", "def normalize_placeholder_names(changed=None, *", 1
    )
    assert text != stock_text(name)
    copy = torch_copy(tmp_path, {name: text})
    result = run_code(_program(), path=[copy])
    assert len(result.warnings) == 1, result.err
    assert "autograd_cache:normalize_placeholder_names differs" in result.warnings[0]
    assert "Of the overlay, cache stays off; the rest is on" in result.warnings[0]
    left_out, groups, reused = result.out.splitlines()[-3:]
    assert "cache" in left_out and "'cache'" not in groups and int(reused) >= 2


def test_strict_refuses_an_overlay_that_matches_in_part(tmp_path):
    name = "_functorch/_aot_autograd/autograd_cache.py"
    text = stock_text(name).replace(
        "def normalize_placeholder_names(", "def normalize_placeholder_names(changed=None, *", 1
    )
    result = run_code(_program(), path=[torch_copy(tmp_path, {name: text})], check=False, TORCH_REGIONS="strict")
    assert result.code != 0 and "OverlayMismatch" in result.err and "normalize_placeholder_names differs" in result.err


def test_what_a_row_of_the_core_leans_on_is_of_the_core():
    manifest = _manifest.load(str(REPO / "manifest.toml"))
    groups = manifest.groups_by_target()
    for row in manifest.rows:
        for target in (row.target, *row.uses):
            assert row.group in groups[target]
    assert set().union(*groups.values()) == set(_groups.GROUPS)
