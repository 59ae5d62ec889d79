"""A backend that runs what Inductor would lower, so that its random numbers can be compared without a C++ compiler."""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor import inductor_prims
from torch._inductor.compile_fx import compile_fx


class _Seeded(torch.fx.Interpreter):
    """Runs a graph. The numbers of a draw are a function of its seed, as in Inductor's kernels."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target is torch.ops.higher_order.invoke_subgraph:
            return _Seeded(args[0], garbage_collect_values=False).run(*args[2:])
        if target is inductor_prims.random:
            size, seed, mode = args
            numbers = torch.Generator().manual_seed(int(seed) % 2**63)
            return getattr(torch, mode)(size, generator=numbers)
        return super().call_function(target, args, kwargs)


class SeededBackend:
    """A backend for ``torch.compile``. ``graphs``: what Inductor would lower, in order: forward, backward, ..."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, gm: torch.fx.GraphModule, inputs: Any) -> Any:
        return compile_fx(gm, inputs, inner_compile=self._keep)

    def _keep(self, gm: torch.fx.GraphModule, inputs: Any, **_: Any) -> Any:
        self.graphs.append(gm)

        def run(values: list[Any]) -> Any:
            operands = list(values)
            values.clear()
            return _Seeded(gm, garbage_collect_values=False).run(*operands)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def count(self, target: Any) -> list[int]:
        """For each graph, how often it and its bodies call ``target``."""
        return [
            sum(
                len(part.graph.find_nodes(op="call_function", target=target))
                for part in gm.modules()
                if isinstance(part, torch.fx.GraphModule)
            )
            for gm in self.graphs
        ]
