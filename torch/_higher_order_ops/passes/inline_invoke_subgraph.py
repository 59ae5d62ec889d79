"""Overlay of torch._higher_order_ops.passes.inline_invoke_subgraph: a body belongs to one level of nesting.

Note [A body belongs to one level]
AOTAutograd traces the graph and, by itself, each body; where it meets a body it looks for it among
the submodules of what it traces.  A body that is called both by a graph and from inside another
body of that graph is found at the wrong place, and compiling fails.  Regions are cut out with that
in mind (``_Cutter._body``), but afterwards a body that is called once is put back into the graph,
and what it calls is one level higher than before.  So afterwards each level gets its own copy.
"""

from __future__ import annotations

import copy

import torch
from torch.fx import GraphModule

from torch_regions.overlay import replaces, stock


@replaces
def inline_single_use_invoke_subgraph(gm: GraphModule) -> GraphModule:
    gm = stock("torch._higher_order_ops.passes.inline_invoke_subgraph:inline_single_use_invoke_subgraph")(gm)
    _Levels().part(gm, 0)
    return gm


class _Levels:
    def __init__(self) -> None:
        # identifier -> the level at which it keeps its name: the first at which it is met
        self._level: dict[str, int] = {}
        # (identifier, level) -> the copy for that level, and its identifier
        self._copies: dict[tuple[str, int], tuple[str, GraphModule]] = {}
        self._seen: set[int] = set()

    def part(self, module: GraphModule, level: int) -> None:
        """Gives the calls in ``module``, and inside what it calls, bodies of their level."""
        if id(module) in self._seen:
            return
        self._seen.add(id(module))
        changed = False
        for node in module.graph.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph):
            changed |= self._part_call(module, node, level)
        if changed:
            module.recompile()
        for node in module.graph.find_nodes(op="get_attr"):
            body = getattr(module, str(node.target), None)
            if isinstance(body, GraphModule):
                self.part(body, level + 1)

    def _part_call(self, module: GraphModule, node: torch.fx.Node, level: int) -> bool:
        where, identifier = node.args[0], str(node.args[1])
        assert isinstance(where, torch.fx.Node)
        if self._level.setdefault(identifier, level) == level:
            return False
        if (identifier, level) not in self._copies:
            body = getattr(module, str(where.target))
            made = GraphModule(body, copy.deepcopy(body.graph))
            made.meta = dict(body.meta)
            self._copies[identifier, level] = f"{identifier}_level_{level}", made
        name, made = self._copies[identifier, level]
        if not hasattr(module, name):
            module.add_module(name, made)
        with module.graph.inserting_before(node):
            other = module.graph.get_attr(name)
        other.meta = dict(where.meta)
        node.args = (other, name, *node.args[2:])
        if not where.users:
            module.graph.erase_node(where)
        return True
