"""The graph values in a subgraph's return value, and which of them become its outputs.

See Note [Wrap semantics] and Note [Operators that count positions] in variables/higher_order_ops.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch._dynamo.regions.release import BaseSetVariable, CustomClassObjectVariable
from torch._dynamo.side_effects import SideEffects
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.dicts import ConstDictVariable
from torch._dynamo.variables.lazy import LazyVariableTracker
from torch._dynamo.variables.lists import BaseListVariable
from torch._dynamo.variables.tensor import SymNodeVariable, TensorVariable


if TYPE_CHECKING:
    from torch._dynamo.output_graph import SubgraphTracer
    from torch.fx import Proxy


IN_A_GRAPH = (TensorVariable, SymNodeVariable, CustomClassObjectVariable)


class GraphOutputs(tuple[VariableTracker, ...]):
    """One tracker for each output of a subgraph, and in ``others`` the further trackers of the same values."""

    others: tuple[tuple[VariableTracker, ...], ...]

    @classmethod
    def of(cls, groups: Iterable[list[VariableTracker]]) -> GraphOutputs:
        groups = list(groups)
        made = cls(group[0] for group in groups)
        made.others = tuple(tuple(group[1:]) for group in groups)
        return made


class _Walk:
    """Collects the trackers of graph values.  A function that called itself would keep them until a collection."""

    def __init__(self, side_effects: SideEffects) -> None:
        self.found: list[VariableTracker] = []
        self._seen: dict[int, Any] = {}
        self._side_effects = side_effects

    def through(self, value: VariableTracker) -> None:
        VariableTracker.visit(self, value, self._seen, self._side_effects)

    def __call__(self, vt: VariableTracker) -> None:
        # ``isinstance`` would realize the tracker, so this checks its type.
        if issubclass(type(vt), LazyVariableTracker):
            return
        if isinstance(vt, IN_A_GRAPH):
            self.found.append(vt)
        elif isinstance(vt, (ConstDictVariable, BaseSetVariable)):
            for key in vt.items:  # the walk itself skips keys
                self.through(key.vt)


def trackers_in(value: VariableTracker, side_effects: SideEffects) -> list[VariableTracker]:
    """The trackers of graph values in ``value``, in the order of a walk, each once."""
    walk = _Walk(side_effects)
    walk.through(value)
    return walk.found


def made_outside(proxy: Proxy, subtracer: SubgraphTracer) -> bool:
    tracer = subtracer.parent
    while tracer is not None:
        if proxy.tracer is tracer:
            return True
        tracer = tracer.parent
    return False


def one_tracker_per_position(output: VariableTracker, subtracer: SubgraphTracer) -> VariableTracker:
    """``output``, with a new tracker for each tensor that is repeated or made outside.

    See Note [Operators that count positions].
    """
    seen: set[VariableTracker] = set()

    def own(item: VariableTracker) -> VariableTracker:
        item = item.realize()
        if not item.is_tensor():
            return item
        known = item in seen or made_outside(item.as_proxy(), subtracer)
        seen.add(item)
        return item.clone(source=None, mutation_type=None) if known else item

    output = output.realize()
    if not isinstance(output, BaseListVariable):
        return own(output)
    items = [own(item) for item in output.items]
    return output.clone(items=items) if any(a is not b for a, b in zip(items, output.items)) else output


def realize_all_in(output: VariableTracker, side_effects: SideEffects) -> None:
    def visit(vt: VariableTracker) -> None:
        vt.realize()

    VariableTracker.visit(visit, output, side_effects=side_effects)


def grouped_by_value(trackers: Iterable[VariableTracker]) -> dict[Any, list[VariableTracker]]:
    groups: dict[Any, list[VariableTracker]] = {}
    for vt in trackers:
        groups.setdefault(vt.as_proxy().node, []).append(vt)
    return groups
