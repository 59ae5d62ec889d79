"""Overlays to test with."""

from __future__ import annotations

from pathlib import Path

import pytest
from testing.overlay_tools import BACKENDS, COND, ERRORS, GUARDS, REPO, SCOPE, Toy, run_code


@pytest.fixture(scope="session")
def toy(tmp_path_factory) -> Toy:
    """One overlay with a file of each kind."""
    made = Toy(tmp_path_factory.mktemp("toy"))
    made.file("_dynamo/current_scope_id.py", SCOPE)
    made.file("_dynamo/added_by_the_overlay.py", '"""Stock has no such module."""\nVALUE = 3\n')
    made.file("_inductor/exc.py", ERRORS)
    made.file("_guards.py", GUARDS)
    made.file("_higher_order_ops/cond.py", COND)
    made.file("_dynamo/backends/debugging.py", BACKENDS)
    return made.build()


@pytest.fixture
def empty_toy(tmp_path) -> Toy:
    """For overlays that a test writes itself."""
    root = tmp_path / "toy"
    root.mkdir()
    return Toy(root)


@pytest.fixture(scope="session")
def repo_is_on() -> None:
    """The installed overlay must be on, or a test of it would test nothing."""
    result = run_code("import torch_regions; s = torch_regions.status(); assert s, s.reason; print(s.root)")
    assert not result.warnings
    assert Path(result.out.strip()) == REPO, "the overlay of another folder would be tested"
