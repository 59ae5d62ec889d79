"""Overlay of torch._higher_order_ops.passes.inline_invoke_subgraph: bodies that are put back into the graph.

Note [A body belongs to one level]
AOTAutograd traces the graph and, by itself, each body; where it meets a body it looks for it among
the submodules of what it traces.  A body that is called both by a graph and from inside another
body of that graph is found at the wrong place, and compiling fails.  Regions are cut out with that
in mind (``_Cutter._body``), but afterwards a body that is called once is put back into the graph,
and what it calls is one level higher than before.  So afterwards each level gets its own copy.

Note [A module of a graph is visited once]
Stock visits the descendants of each descendant, and leaves a body that was put back where it was, with all that is
under it. So the number of visits, and of the times that a body's code is written, doubles with each level of nesting.
Here each module is visited once, after its children, and a body goes when it is put back.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch._higher_order_ops.passes.inline_invoke_subgraph import count_subgraph_uses, inline_invoke_subgraph_nodes
from torch._higher_order_ops.region_autocast import strip
from torch.fx import GraphModule, Node

from torch_regions.overlay import replaces


@replaces
def inline_single_use_invoke_subgraph(gm: GraphModule) -> GraphModule:
    uses = count_subgraph_uses(gm)

    def is_single(module: GraphModule, call: Node) -> bool:
        body = call.args[0]
        assert isinstance(body, Node)
        configured = getattr(module, str(body.target)).meta.get("nested_region_config")
        return uses[str(call.args[1])] == 1 and not configured

    _put_back(gm, is_single, set())
    _Levels().part(gm, 0)
    return gm


@replaces
def inline_invoke_subgraph(gm: GraphModule) -> GraphModule:
    _put_back(gm, lambda module, call: True, set())
    return gm


def _put_back(module: torch.nn.Module, chosen: Callable[[GraphModule, Node], bool], seen: set[int]) -> None:
    """Puts the bodies of chosen calls into the graphs around them: Note [A module of a graph is visited once]."""
    if id(module) in seen:
        return
    seen.add(id(module))
    for child in list(module.children()):
        _put_back(child, chosen, seen)
    if not isinstance(module, GraphModule):
        return
    calls = module.graph.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph)
    calls = [call for call in calls if chosen(module, call)]
    if not calls:
        return
    names = {str(call.args[0].target) for call in calls}
    for name in names:  # each call of such a body is put back
        strip(getattr(module, name))
    inline_invoke_subgraph_nodes(module, calls)
    names -= {str(node.target) for node in module.graph.find_nodes(op="get_attr")}
    for name in names:
        delattr(module, name)
    module.recompile()


class _Levels:
    def __init__(self) -> None:
        # identifier -> the level at which it keeps its name: the first at which it is found
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

    def _part_call(self, module: GraphModule, node: Node, level: int) -> bool:
        where, identifier = node.args[0], str(node.args[1])
        assert isinstance(where, Node)
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
