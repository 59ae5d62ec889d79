"""Time of what a call of a marked region costs before it is stamped out, in microseconds of CPU time.

    python -m benchmarks.reuse_check [--models llama gpt2] [--layers 24]

fingerprint  holding back and flattening the arguments of a call
100 reads    checking the read set of an earlier call, for each hundred sources in it (guards, state of objects,
             identities); without building trackers for the call's own tensors, which tracing it would do as well

The median and the least of the calls of one compile, each made once; and the least of one call's that is repeated a
hundred times, which leaves out what the processor has to fetch anew after the tracing in between.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch._dynamo
from torch._dynamo.regions.trace import call as trace_call
from torch._dynamo.regions.trace import lookup
from torch._dynamo.regions.trace.deferred import OpenedTuples
from torch._dynamo.regions.trace.substitution import GuardActions, SourceSubstitution

from benchmarks.zoo import build, mark_blocks


def _repeated(function: Callable[[], Any], times: int = 100) -> float:
    """The least of so many."""
    spent: list[float] = []
    for _ in range(times):
        _timed(spent, function)()
    return min(spent)


def _timed(spent: list[float], function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        start = time.thread_time()
        try:
            return function(*args, **kwargs)
        finally:
            spent.append(time.thread_time() - start)

    return call


def _closed(hold: Callable[..., Any], *args: Any) -> None:
    *given, _ = args
    opened = OpenedTuples()
    hold(*given, opened)
    opened.close()


class Measurement(NamedTuple):
    median: float
    least: float
    repeated: float


def measure(name: str, layers: int) -> dict[str, Measurement]:
    """Seconds of each, for the calls that are stamped out."""
    torch._dynamo.reset()
    example = build(name, layers)
    mark_blocks(name, example.model)
    fingerprints: list[float] = []
    checks: list[float] = []
    sizes: list[int] = []
    repeated: dict[str, float] = {}
    follow, check, hold = lookup._follow, lookup._check, trace_call.PreparedArguments

    def held(*args: Any) -> Any:
        if len(fingerprints) == layers // 2:
            repeated["fingerprint"] = _repeated(lambda: _closed(hold, *args))
        return _timed(fingerprints, hold)(*args)

    def checked(tx: Any, arguments: Any, entry: Any, bindings: Any, actions: Any) -> None:
        roots = actions.substitution._roots

        def anew() -> None:
            again = GuardActions(tx, SourceSubstitution(roots), actions.resolve)
            check(tx, arguments, entry, follow(entry.condition, again), again)

        sizes.append(len(entry.condition.sources))
        with mock.patch.object(lookup, "_check_built"):  # what it builds, tracing builds too
            _timed(checks, anew)()
            if len(sizes) == layers // 2:
                repeated["100 reads"] = _repeated(anew) / sizes[-1] * 100
        check(tx, arguments, entry, bindings, actions)

    with (
        mock.patch.object(trace_call, "PreparedArguments", held),
        mock.patch.object(lookup, "_check", checked),
    ):
        example.call(torch.compile(example.model, backend=lambda gm, _: gm.forward))
    reads = [c / s * 100 for c, s in zip(checks, sizes, strict=True)]
    spent = {"fingerprint": fingerprints, "100 reads": reads}
    return {what: Measurement(statistics.median(v), min(v), repeated[what]) for what, v in spent.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["llama", "gpt2"])
    parser.add_argument("--layers", type=int, default=24)
    options = parser.parse_args()
    for name in options.models:
        for what, spent in measure(name, options.layers).items():
            each = "   ".join(f"{kind} {seconds * 1e6:6.0f} us" for kind, seconds in spent._asdict().items())
            print(f"{name:10} {what:12} {each}")


if __name__ == "__main__":
    main()
