"""Time of what a call of a marked region costs before it is stamped out, in microseconds of CPU time.

    python -m benchmarks.reuse_check [--models llama gpt2] [--layers 24]

fingerprint  holding back and flattening the arguments of a call
100 reads    checking the read set of an earlier call, for each hundred observations in it (guards, looks of objects,
             identities); without building trackers for the call's own tensors, which tracing it would do as well

The median and the least of the calls of one compile.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch._dynamo
from torch._dynamo import region_entries, region_reuse

from benchmarks.zoo import build, mark_blocks


def _timed(spent: list[float], function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        start = time.thread_time()
        try:
            return function(*args, **kwargs)
        finally:
            spent.append(time.thread_time() - start)

    return call


def _observations(condition: Any) -> int:
    counted = (condition.guards, condition.objects, condition.distinct, condition.same, condition.pins)
    return sum(map(len, counted))


def measure(name: str, layers: int) -> dict[str, tuple[float, float]]:
    """(median, minimum) of each, for the calls that are stamped out."""
    torch._dynamo.reset()
    example = build(name, layers)
    mark_blocks(name, example.model)
    fingerprints: list[float] = []
    checks: list[float] = []
    built: list[float] = []
    sizes: list[int] = []
    check = region_reuse._check

    def sized(tx: Any, arguments: Any, entry: Any, fates: Any) -> None:
        sizes.append(_observations(entry.condition))
        check(tx, arguments, entry, fates)

    with (
        mock.patch.object(region_entries, "_Held", _timed(fingerprints, region_entries._Held)),
        mock.patch.object(region_reuse, "_check", _timed(checks, sized)),
        mock.patch.object(region_reuse, "_check_built", _timed(built, region_reuse._check_built)),
    ):
        example.call(torch.compile(example.model, backend=lambda gm, _: gm.forward))
    reads = [(c - b) / s * 100 for c, b, s in zip(checks, built, sizes, strict=True)]
    return {k: (statistics.median(v), min(v)) for k, v in (("fingerprint", fingerprints), ("100 reads", reads))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["llama", "gpt2"])
    parser.add_argument("--layers", type=int, default=24)
    options = parser.parse_args()
    for name in options.models:
        for what, (median, least) in measure(name, options.layers).items():
            print(f"{name:10} {what:12} median {median * 1e6:8.0f} us   least {least * 1e6:8.0f} us")


if __name__ == "__main__":
    main()
