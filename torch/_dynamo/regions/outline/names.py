"""Names nodes around the calls of bodies as Dynamo would name them if it traced each body by itself.

A region is traced flat, so Dynamo's numbering of nodes continues through it, and a name that the program uses in the
region is no longer free after it. A backend ignores names; readers of logs need them.
"""

from __future__ import annotations

import re

import torch.fx


Node = torch.fx.Node

Names = dict[Node, str]
GivenNames = dict[Node, str | None]

_NUMBER = re.compile(r"_\d+$")


def _plain(name: str) -> str:
    """A name without the number that makes it unique."""
    return _NUMBER.sub("", name)


def _of_target(node: Node) -> str:
    """The name that Dynamo gives a node before the program's name is known."""
    if node.op == "get_attr":
        return str(node.target)
    named: str = node.graph._target_to_str(node.target)
    return named


def given_name(node: Node, name: str | None = None) -> str | None:
    """The program's name of the value of ``node``, or None. ``name`` replaces the node's present name, if given."""
    plain = _plain(name or node.name)
    # If the name of an operator is a keyword or a builtin, even its first node has a number.
    return None if plain in (_plain(_of_target(node)), "") else plain


def name_outside(node: Node, inside: Names) -> str | None:
    """The program's name for a region's result outside of the region.

    ``inside``: names when the regions' calls ended.
    """
    return None if inside.get(node) == node.name else given_name(node)


def name_anew(graph: torch.fx.Graph, given: GivenNames) -> None:
    """Names all nodes of ``graph`` except its inputs, in program order.

    ``given``: the program's names of some of them.
    """
    names = torch.fx.graph._Namespace()
    nodes = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    kept = [node for node in graph.nodes if node.op in ("placeholder", "output")]
    hints = {node: given[node] if node in given else given_name(node) for node in nodes}
    targets = {node: _of_target(node) for node in nodes}
    for node in kept:
        names.associate_name_with_obj(names.create_name(node.name, None), node)
        names._used_names.add(str(node.target))
    for node in nodes:
        name = names.create_name(targets[node], None)
        if (hint := hints[node]) is not None:
            name = names.create_name(hint, None)
        names.associate_name_with_obj(name, node)
        node.name = name
    graph._graph_namespace = names
