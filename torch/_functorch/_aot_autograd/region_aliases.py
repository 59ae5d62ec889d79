"""Records what the results of partitioned regions alias, in the graph around their calls.

Note [What a partitioned region returns]
The partitioner makes the forward body return, besides its results, the values that the backward body needs. Often such
a value is an argument (a weight), or one of the results again. Stock describes each such output by the fake tensor of
the *body's* graph. Its storage is that of the body's placeholder: all calls share it, and the graph around them does
not know it. So a saved weight looks like separate memory and is counted among the donated buffers, and the backward
writes its gradients into the parameter, or into a tensor that the user holds.

So, for each call separately:
- an output that is an argument of the body is replaced by that operand of the call, in the graph itself;
- an output that is returned twice becomes one value, in the graph itself;
- an output that is a view of either gets a fake tensor on that storage;
- any other output gets a fake tensor with a storage of its own, so it is donated if flat would donate it.

The passes that Inductor runs on the joint graph remove copies (``remove_noop_ops``, ``remove_no_ops``): an operand that
was a clone may be an input of the graph by then, or what the user gets, and what a body returns may be its operand. And
the partitioner makes one value of equal ones. So after these passes, the results of each call are what its body returns
by then, and those that are views of an operand follow it (``follow_operands``). In a body, all views do. This holds for
bodies through which no gradient flows too: the graph around their calls may save what they return, or write to it.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._dynamo.regions.options import verifying
from torch._functorch import config
from torch._functorch.compile_utils import fx_graph_cse
from torch._higher_order_ops.region_metadata import calls_with_bodies, on_storage, without_guards
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager
from torch.fx import Graph, GraphModule, Node
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


# Calls, and what they return.
_OF_CALLS = (torch.ops.higher_order.invoke_subgraph, operator.getitem)


def _val(node: Any) -> FakeTensor | None:
    val = node.meta.get("val") if isinstance(node, Node) else None
    if not isinstance(val, FakeTensor) or is_traceable_wrapper_subclass(val):
        return None
    return val if val.layout is torch.strided else None


def _storage(val: FakeTensor) -> int:
    return int(val.untyped_storage()._cdata)


class _Call:
    def __init__(self, node: Node, body: GraphModule) -> None:
        self.node = node
        self.inputs = body.graph.find_nodes(op="placeholder")
        self.outputs: tuple[Any, ...] = tuple(body.graph.find_nodes(op="output")[0].args[0])
        self.operands = node.args[2:]
        self.items: dict[int, list[Node]] = {}
        for user in node.users:
            if user.target is operator.getitem:
                self.items.setdefault(user.args[1], []).append(user)  # type: ignore[arg-type]

    def say_aliases(self) -> None:
        self._merge_equal_outputs()
        vals = list(self.node.meta["val"])
        # storage in the body -> a tensor on it in the body, and its counterpart in the graph around the call
        known = self._known_by_operands()
        for i, output in enumerate(self.outputs):
            # A value that the tracer already used in the graph around the call keeps its storage.
            a = _val(output)
            users = [b for item in self.items.get(i, ()) if (b := _val(item)) is not None]
            if a is not None and users and users[0] is not a and _storage(users[0]) != _storage(a):
                known.setdefault(_storage(a), (a, users[0]))
        described = [(i, like) for i, output in enumerate(self.outputs) if (like := _val(output)) is not None]
        if described:
            mode = described[0][1].fake_mode
            # From meta tensors. Both are entered here: a function that returned them entered could be interrupted.
            with in_kernel_invocation_manager(mode), without_guards(mode):
                for i, like in described:
                    vals[i] = self._describe(i, like, known)
        self.node.meta["val"] = tuple(vals)

    def _known_by_operands(self) -> dict[int, tuple[FakeTensor, FakeTensor]]:
        known: dict[int, tuple[FakeTensor, FakeTensor]] = {}
        for inner, outer in zip(self.inputs, self.operands):
            if (a := _val(inner)) is not None and (b := _val(outer)) is not None:
                known.setdefault(_storage(a), (a, b))
        return known

    def follow_operands(self) -> None:
        """Gives the results that are views of an operand, or of one another, the storage that this has by now."""
        self._merge_equal_outputs()
        known = self._known_by_operands()
        for i, output in enumerate(self.outputs):
            if (like := _val(output)) is None:
                continue
            for item in self.items.get(i, ()):
                if (val := _val(item)) is None:
                    continue
                pair = known.setdefault(_storage(like), (like, val))
                if _storage(val) != _storage(pair[1]):
                    with in_kernel_invocation_manager(like.fake_mode), without_guards(like.fake_mode):
                        item.meta["val"] = self._view(like, *pair)

    @staticmethod
    def _view(like: FakeTensor, inner: FakeTensor, outer: FakeTensor) -> FakeTensor:
        """``like``, which is on the storage of ``inner``, on that of ``outer``."""
        offset = like.storage_offset() - inner.storage_offset() + outer.storage_offset()
        # A fake tensor from the operator cache has lost its offset.
        known = isinstance(offset, torch.SymInt) or offset >= 0
        return on_storage(like.fake_mode, like, outer, offset if known else like.storage_offset())

    def _describe(self, i: int, like: FakeTensor, known: dict[int, tuple[FakeTensor, FakeTensor]]) -> FakeTensor:
        items = self.items.get(i, [])
        pair = known.get(_storage(like))
        if pair is None:
            val = on_storage(like.fake_mode, like, None, 0)
            known[_storage(like)] = (like, val)
        elif any(_val(item) is pair[1] for item in items):
            val = pair[1]
        else:
            val = self._view(like, *pair)
        for item in items:
            if _val(item) is like:
                item.meta["val"] = val
        return val

    def _merge_equal_outputs(self) -> None:
        first: dict[Node, int] = {}
        for i, output in enumerate(self.outputs):
            if not isinstance(output, Node):
                continue
            if output in self.inputs:
                self._replace(i, self.operands[self.inputs.index(output)])
            elif output in first:
                same = self.items.get(first[output])
                if same:
                    self.node.append(same[0])
                    self._replace(i, same[0])
                elif i in self.items:
                    first[output] = i
            else:
                first[output] = i

    def _replace(self, i: int, value: Any) -> None:
        for item in self.items.pop(i, []):
            item.replace_all_uses_with(value)
            item.graph.erase_node(item)


def say_aliases_of_regions(gm: GraphModule) -> None:
    """Corrects, call by call, the fake tensors in `gm` of the results of its partitioned regions."""
    found = False
    for call, _, body in calls_with_bodies(gm, "partitioned_"):
        found = True
        _Call(call, body).say_aliases()
    if found:
        if verifying():
            gm.graph.lint()
        gm.recompile()


def _has_twins(graph: Graph) -> bool:
    """Whether two operators of ``graph``, other than calls and what they return, are the same on the same operands."""
    seen = set()
    for node in graph.nodes:
        if node.op != "call_function" or node.target in _OF_CALLS:
            continue
        key = node.target, repr(node.args), repr(node.kwargs)
        if key in seen:
            return True
        seen.add(key)
    return False


def _on_storage_of(outer: FakeTensor, like: FakeTensor) -> FakeTensor:
    if _storage(like) == _storage(outer):
        return like
    with in_kernel_invocation_manager(like.fake_mode), without_guards(like.fake_mode):
        return on_storage(like.fake_mode, like, outer, like.storage_offset())


def _follow_base(node: Node) -> None:
    """Gives the result of an operator that makes views the storage that the viewed operand has by now."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return
    arguments = zip(node.args, node.target._schema.arguments)
    viewed = next((a for a, said in arguments if said.alias_info is not None and not said.alias_info.is_write), None)
    if (outer := _val(viewed)) is None:
        return
    if (val := _val(node)) is not None:
        node.meta["val"] = _on_storage_of(outer, val)
    for part in node.users if isinstance(node.meta.get("val"), (list, tuple)) else ():
        if part.target is operator.getitem and (val := _val(part)) is not None:
            part.meta["val"] = _on_storage_of(outer, val)


def _follow(gm: GraphModule) -> None:
    calls = {call: body for call, _, body in calls_with_bodies(gm)}
    nodes = list(gm.graph.nodes)
    for node in nodes:
        if node in calls:
            _Call(node, calls[node]).follow_operands()
        else:
            _follow_base(node)
    if len(gm.graph.nodes) < len(nodes):
        gm.recompile()


def follow_operands(gm: GraphModule, *, partitioned_next: bool) -> None:
    """Corrects the storages of fake tensors in `gm` that are views, after passes that replace operands and results.

    `gm`: the graph of a program with regions, or a body; the bodies that it calls were given here before.
    """
    if partitioned_next and config.cse and _has_twins(gm.graph):
        # The partitioner would do it next, and make one operand of two.
        gm.graph = fx_graph_cse(gm.graph)
    _follow(gm)


def follow_operands_in_all(gm: GraphModule, seen: set[GraphModule] | None = None) -> None:
    """The same for `gm` and its bodies, after their fake tensors were made anew.

    Stock runs a body on copies of the operands' fake tensors. A view of an operand is on the copy's storage then.
    """
    seen = set() if seen is None else seen
    bodies = [body for _, _, body in calls_with_bodies(gm)]
    for body in bodies:
        if body not in seen:
            seen.add(body)
            follow_operands_in_all(body, seen)
    if bodies:
        _follow(gm)
