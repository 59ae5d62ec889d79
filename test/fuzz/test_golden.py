"""What the fuzzer found, each a program named after its cause: regions change nothing of it, in any mode."""

from pathlib import Path

import pytest
import torch._dynamo
from fuzz_finds import text_of
from fuzz_oracle import MODES, check


GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.py"))


@pytest.fixture(autouse=True)
def fresh():
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", ("eager", "aot_eager"))
@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_find_stays_mended(path, backend):
    text = text_of(path)
    for mode in MODES:
        checked = check(text, mode, backend)
        assert checked.discarded is None, f"{mode}: the program shows nothing any more: {checked.discarded}"
        assert checked.failure is None, f"{mode}: {checked.failure}"
