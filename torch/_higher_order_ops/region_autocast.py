"""Autocast that the graph of a body enters by itself.

For a body that Dynamo has cut out, this is the autocast of its calls: Note [A body enters the autocast of its calls] in
torch/_dynamo/regions/outline/islands.py.

Note [A joint body is traced under the backward's autocast]
Stock traces the joint graph of a body, in the backward, under the dispatch keys of the forward call, which include
those of autocast. The gradients of a flat graph are computed under the autocast that the backward finds. So here the
autocast keys are the backward's; the forward operators in the joint graph run under the autocast that the body enters.

The traced joint graph contains all casts. It is called, and traced once more, where autocast may be on. Casting an
operand again changes nothing, but an operator that autocast leaves alone may be composed of operators whose operands it
casts. So a joint graph that is traced under autocast turns it off for itself.

The graph that make_fx traces of a forward body contains all casts too, and none for the operators around which the body
turns autocast off. Where such a graph runs while it is compiled, autocast is off.

Note [Autocast casts the parts of a composition]
Autocast leaves many compositions (``einsum``, ``matrix_power``) alone and casts the operands of the products in them.
The dispatcher takes a composition apart above autograd. A call of a region is traced below autograd: the modes that
trace are given the composition itself there, and run what it is made of without autocast. So where autocast is on, or
the body turns it on, the body runs above autograd, as its operators do in the flat graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node


# Key in the ``meta`` of the nodes by which a body enters and leaves autocast.
_ENTERED = "region_enters_autocast"
# Key in the ``meta`` of a traced body that turns autocast off.
WITHOUT_AUTOCAST = "region_without_autocast"


def enter(body: Graph, autocasts: Sequence[tuple[Any, ...]]) -> list[Node]:
    """Emits calls that enter ``autocasts``, where ``body`` inserts."""
    return [_noted(body.call_function(torch.amp._enter_autocast, arguments)) for arguments in autocasts]


def leave(body: Graph, entered: list[Node]) -> None:
    """Emits calls that leave what ``body`` has entered, where it inserts."""
    for node in reversed(entered):
        _noted(body.call_function(torch.amp._exit_autocast, (node,)))


def _noted(node: Node) -> Node:
    node.meta[_ENTERED] = True
    return node


def is_entered(node: Node) -> bool:
    """Whether ``node`` is a call by which a body enters or leaves autocast."""
    return _ENTERED in node.meta


def strip(body: GraphModule) -> None:
    """Removes the calls by which ``body`` enters and leaves autocast: the graph around it has entered autocast."""
    nodes = [node for node in body.graph.nodes if is_entered(node)]
    for node in reversed(nodes):
        body.graph.erase_node(node)
    if nodes:
        body.recompile()


def _devices() -> list[str]:
    return [device for device in torch._C._autocast_supported_devices() if torch.is_autocast_enabled(device)]


def note_traced(body: Any) -> None:
    """Notes that the graph of ``body`` contains all casts."""
    if isinstance(body, GraphModule):
        body.meta[WITHOUT_AUTOCAST] = True


def autocast_of(body: Any) -> contextlib.AbstractContextManager[Any]:
    """The context in which ``body`` runs: without autocast, if its graph contains all casts."""
    traced = isinstance(body, GraphModule) and WITHOUT_AUTOCAST in body.meta
    return torch._C._DisableAutocast() if traced and torch._C._is_any_autocast_enabled() else contextlib.nullcontext()


def above_autograd() -> tuple[torch._C.DispatchKeySet, torch._C.DispatchKeySet]:
    """The dispatch keys that this thread includes and excludes, if autograd's are not excluded."""
    keys, excluded = torch._C.DispatchKey, torch._C._dispatch_tls_local_exclude_set()
    for key in (keys.AutogradFunctionality, keys.AutogradOther, keys.AutogradNestedTensor):
        excluded = excluded.remove(key)
    return torch._C._dispatch_tls_local_include_set(), excluded


def casting_parts(body: Any) -> contextlib.AbstractContextManager[Any]:
    """The context in which ``body`` is run to be traced: see Note [Autocast casts the parts of a composition]."""
    if torch._C._is_any_autocast_enabled() or not isinstance(body, GraphModule) or _enters_autocast(body):
        return torch._C._ForceDispatchKeyGuard(*above_autograd())  # type: ignore[no-any-return]
    return contextlib.nullcontext()


def _enters_autocast(body: GraphModule) -> bool:
    graphs = (module.graph for module in body.modules() if isinstance(module, GraphModule))
    return any(graph.find_nodes(op="call_function", target=torch.amp._enter_autocast) for graph in graphs)


def turn_off(body: GraphModule) -> None:
    """Makes a traced ``body`` turn off the autocast that is on, because its graph contains the casts."""
    devices = _devices()
    body.meta[WITHOUT_AUTOCAST] = True
    if not devices:
        return
    graph = body.graph
    with graph.inserting_before(next(n for n in graph.nodes if n.op != "placeholder")):
        entered = enter(graph, [(device, None, False, None) for device in devices])
    with graph.inserting_before(graph.output_node()):
        leave(graph, entered)
    body.recompile()


def with_autocast_of_thread(excluded: torch._C.DispatchKeySet) -> torch._C.DispatchKeySet:
    """``excluded`` dispatch keys, with the autocast keys replaced by those that this thread excludes."""
    key, below = torch._C.DispatchKey, torch._C._dispatch_keyset_full_after
    autocast = below(key.FuncTorchBatched) - below(key.AutocastCPU)
    return (excluded - autocast) | (torch._C._dispatch_tls_local_exclude_set() & autocast)
