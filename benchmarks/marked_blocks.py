"""What becomes of real architectures whose repeated block is marked as a region.

    python -m benchmarks.marked_blocks [NAME...]

Per architecture, in training (without and with dropout) and in inference: outcomes of the calls;
calls in the top graph and the bodies that they share; operators of the blocks that stay in the top
graph, a block, and why. Calls of a body of their own, which Dynamo puts back into the graph unless
told otherwise, are counted apart: "alone".
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import logging
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch._dynamo
from torch._dynamo.utils import counters

from benchmarks.zoo import ARCHITECTURES, BLOCKS, build, mark_blocks


LAYERS = 4
BOUNDARY = "may not cross the boundary, or too few between such"


@dataclasses.dataclass
class Report:
    """What marks did to one compiled program: sums over its graphs."""

    outcomes: dict[str, int] = dataclasses.field(default_factory=dict)
    graphs: int = 0
    bodies: int = 0
    calls: int = 0
    body_operators: int = 0
    # Calls whose body no other call has, and the operators in them.
    alone: int = 0
    alone_operators: int = 0
    # Operators recorded in a block that are in the top graph, by the reason.
    left: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    # And by their target.
    targets: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def backend(self, inner: Any = None) -> Any:
        """A backend that notes what it is given before ``inner`` compiles it."""

        def compiled(gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
            self.note(gm)
            return inner(gm, example_inputs) if inner is not None else gm.forward

        return compiled

    def note(self, gm: torch.fx.GraphModule) -> None:
        self.graphs += 1
        uses: collections.Counter[str] = collections.Counter()
        for node in gm.graph.nodes:
            if node.target is torch.ops.higher_order.invoke_subgraph:
                uses[node.args[0].target] += 1
            elif node.op.startswith("call_") and self._is_in_block(node):
                self.left[self._reasons.get(node.name, BOUNDARY)] += 1
                self.targets[str(getattr(node.target, "__name__", node.target))] += 1
        for name, n in uses.items():
            operators = sum(node.op.startswith("call_") for node in getattr(gm, name).graph.nodes)
            if n == 1:
                self.alone += 1
                self.alone_operators += operators
            else:
                self.bodies += 1
                self.calls += n
                self.body_operators += operators

    @staticmethod
    def _is_in_block(node: torch.fx.Node) -> bool:
        # The getitem that takes a result out of a call is no operator of the program.
        first = node.args[0] if node.args else None
        if isinstance(first, torch.fx.Node) and first.target is torch.ops.higher_order.invoke_subgraph:
            return False
        names = {name for classes in BLOCKS.values() for name in classes}
        stack = node.meta.get("nn_module_stack", {}).values()
        return any(str(getattr(t, "__name__", t)).rpartition(".")[2] in names for _, t in stack)

    _reasons: dict[str, str] = dataclasses.field(default_factory=dict)


@contextlib.contextmanager
def reported() -> Iterator[Report]:
    """A report of what is compiled with its ``backend`` in the context."""
    report = Report()

    class TraceEvents(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "stays" in record.msg:
                name, why = record.args  # type: ignore[misc]
                report._reasons[name] = why  # type: ignore[index, assignment]

    log = logging.getLogger("torch._dynamo.graph_region_tracker.__graph_region_expansion")
    listener, level, propagate = TraceEvents(), log.level, log.propagate
    counters.clear()
    torch._dynamo.reset()
    log.addHandler(listener)
    log.setLevel(logging.DEBUG)
    log.propagate = False
    try:
        # Else names change: operators that were in a body of their own get others in the top graph.
        with torch._dynamo.config.patch(inline_single_use_invoke_subgraph=False):
            yield report
    finally:
        log.removeHandler(listener)
        log.setLevel(level)
        log.propagate = propagate
        report.outcomes = dict(counters["regions"])


def measure(name: str, train: bool, dropout: bool = False, layers: int = LAYERS) -> tuple[Report, int]:
    """The report of one architecture, and how many blocks it has."""
    example = build(name, layers, dropout)
    marked = mark_blocks(name, example.model)
    example.model.train(train)
    with reported() as report, torch.set_grad_enabled(train):
        example.call(torch.compile(example.model, backend=report.backend()))
    return report, marked


def line(report: Report, blocks: int) -> str:
    outcomes = ", ".join(f"{v} {k}" for k, v in sorted(report.outcomes.items()))
    why = "; ".join(f"{n / blocks:.1f} {reason}" for reason, n in report.left.most_common())
    targets = " ".join(f"{t}:{n}" for t, n in report.targets.most_common(8))
    return (
        f"{blocks} blocks: {outcomes}; {report.graphs} graphs, {report.calls} calls of {report.bodies} bodies, "
        f"{report.body_operators} operators in them; {report.alone} calls alone ({report.alone_operators} operators); "
        f"left in the graph a block {sum(report.left.values()) / blocks:.1f}"
        f"{' (' + why + ')' if why else ''} {targets}"
    )


def main() -> None:
    for name in sys.argv[1:] or ARCHITECTURES:
        for mode, train, dropout in (("train", True, False), ("dropout", True, True), ("infer", False, False)):
            print(f"{name} {mode}: {line(*measure(name, train, dropout))}", flush=True)


if __name__ == "__main__":
    main()
