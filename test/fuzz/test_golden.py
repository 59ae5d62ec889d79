"""What the fuzzer found, each a program named after its cause: regions change nothing of it, in any mode."""

from pathlib import Path

import pytest
import torch._dynamo
from fuzz_finds import text_of
from fuzz_oracle import MODES, check
from testing.cases import EVERY, some
from torch.utils._release import RELEASE


GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.py"))
# The write that makes a buffer require grad is to what the backward of this backend has saved: flat raises too, and from
# 2.15.0 on it gives another state than eager.
FLAT_IS_WRONG = {
    ("buffer_that_comes_to_require_grad_by_a_write", "aot_eager"),
    ("verify_buffer_that_requires_grad_after_the_traced_call", "aot_eager"),
}


@pytest.fixture(autouse=True)
def fresh():
    yield
    torch._dynamo.reset()


CASES = [(path, backend) for path in GOLDEN for backend in ("eager", "aot_eager")]


def _modes(path):
    """Those with verification for what verification found, else those without; ``make test-full`` runs all."""
    return MODES if EVERY else MODES[path.stem.startswith("verify_") :: 2]


# One backend for each; `make test-full` runs both.
@pytest.mark.parametrize(
    "path, backend",
    some(CASES, [(path, "eager" if k % 4 == 0 else "aot_eager") for k, path in enumerate(GOLDEN)]),
    ids=[f"{path.stem}-{backend}" for path, backend in CASES],
)
def test_a_find_stays_mended(path, backend):
    text = text_of(path)
    for mode in _modes(path):
        checked = check(text, mode, backend)
        if (path.stem, backend) in FLAT_IS_WRONG:
            assert checked.discarded == ("flat has another state" if RELEASE >= (2, 15) else "flat raises")
            continue
        assert checked.discarded is None, f"{mode}: the program shows nothing any more: {checked.discarded}"
        assert checked.failure is None, f"{mode}: {checked.failure}"
