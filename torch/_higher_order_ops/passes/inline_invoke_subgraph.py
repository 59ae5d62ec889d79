"""Overlay of torch._higher_order_ops.passes.inline_invoke_subgraph: bodies that are inlined into the graph again.

Note [A body belongs to one level]
AOTAutograd traces the graph and, separately, each body, and looks for a body among the submodules of what it traces. If
both a graph and another body of that graph call a body, AOTAutograd looks in the wrong place, and compiling fails.
Outlining avoids that (``_Cutter._body``), but afterwards a body with a single call is inlined again, and the bodies
that it calls move up one level. So each level then gets its own copy.

Note [A module of a graph is visited once]
Stock visits the descendants of each descendant, and does not remove a body that was inlined, nor its submodules. So the
number of visits, and of recompiles of a body's code, doubles with each level of nesting. Here each module is visited
once, after its children, and a body is removed when it is inlined.
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
    """Inlines the bodies of chosen calls: Note [A module of a graph is visited once]."""
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
    for name in names:  # each call of such a body is inlined
        strip(getattr(module, name))
    inline_invoke_subgraph_nodes(module, calls)
    names -= {str(node.target) for node in module.graph.find_nodes(op="get_attr")}
    for name in names:
        delattr(module, name)
    module.recompile()


class _Levels:
    def __init__(self) -> None:
        # identifier -> the level at which the body keeps its name: the first one where it is found
        self._level: dict[str, int] = {}
        # (identifier, level) -> the identifier of the copy for that level, and the copy
        self._copies: dict[tuple[str, int], tuple[str, GraphModule]] = {}
        self._seen: set[int] = set()

    def part(self, module: GraphModule, level: int) -> None:
        """Gives the calls in ``module``, and in the bodies that it calls, bodies of their level."""
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
