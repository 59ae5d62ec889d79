"""What the key of AOTAutogradCache costs: ours against stock's, for one graph in one process.

python benchmarks/cache_key.py [NODES ...]
"""

from __future__ import annotations

import logging
import statistics
import sys
import time
from typing import Any

import torch
import torch._dynamo
from torch._functorch._aot_autograd import autograd_cache

from torch_regions.overlay import stock


REPEATS = 7


def graph_of(nodes: int) -> Any:
    """A program whose graph has about this many nodes."""

    def program(x, w):
        for _ in range(nodes // 5):
            x = (torch.nn.functional.gelu(x @ w) * 2.0 + x).view(4, 8)
        return x

    return program


def measure(nodes: int) -> tuple[int, float, float]:
    """Number of nodes, and milliseconds for a key: ours and stock's, in turns."""
    found: list[tuple[int, float, float]] = []
    functions = [autograd_cache.autograd_cache_key, stock(f"{autograd_cache.__name__}:autograd_cache_key")]

    def keys(mod: Any, *arguments: Any) -> Any:
        before = [(id(n), n.name, n.target) for n in mod.graph.nodes]
        times: list[list[float]] = [[], []]
        for turn in range(REPEATS + 1):
            for number, function in enumerate(functions):
                start = time.perf_counter()
                function(mod, *arguments)
                if turn:  # the first one fills caches of torch's
                    times[number].append(1e3 * (time.perf_counter() - start))
        assert before == [(id(n), n.name, n.target) for n in mod.graph.nodes]
        found.append((len(before), *(statistics.median(t) for t in times)))  # type: ignore[arg-type]
        raise NotImplementedError("measured")

    autograd_cache.autograd_cache_key = keys
    torch._dynamo.reset()
    with torch.no_grad(), torch._functorch.config.patch(strict_autograd_cache=True):
        try:
            torch.compile(graph_of(nodes))(torch.ones(4, 8), torch.ones(8, 8))
        except Exception as error:
            assert "measured" in str(error), error
        finally:
            autograd_cache.autograd_cache_key = functions[0]
    return found[0]


def main() -> None:
    logging.getLogger("torch._dynamo").setLevel(logging.CRITICAL)
    print(f"{'nodes':>8}{'ours, ms':>12}{'stock, ms':>12}{'ratio':>8}")
    for nodes in map(int, sys.argv[1:] or ("1000", "10000")):
        count, ours, theirs = measure(nodes)
        print(f"{count:>8}{ours:>12.1f}{theirs:>12.1f}{ours / theirs:>8.2f}")


if __name__ == "__main__":
    main()
