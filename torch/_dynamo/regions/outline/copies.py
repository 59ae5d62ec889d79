"""Copies of inputs that a body writes to in the place of the inputs, in a frame with gradients.

Note [A body writes to a copy]
A layer that normalizes over a batch writes its running statistics in every call. AOTAutograd has no joint graph of a
body that writes to an operand. So if a frame begins with grad mode, a body begins with a copy of each input that the
region writes to (Note [A region may write to an input]), computes with the copy, and returns it behind the results of
the region. Right after the call, the graph copies that into the input. No other operand of the region is the input's
memory, so the region cannot tell the copy from the input, and the rest of the graph sees what the region would have
left. AOTAutograd makes this functional, and writes to the input last, as it does for the operators' own writes.

A backward must not need such an input: it would find what the forward has written. Hence, for an input to be copied,

- no value that is computed from it requires grad (``_touching``). A norm in training is the exception: it computes with
  the statistics of the batch;
- autograd saves all operands of a call, and checks their versions. A call that writes to a copy saves what it took
  otherwise: Note [A call saves what it took]. One that only reads the input is given a copy. Nothing takes a view of
  the input;
- ``batch_norm`` saves its statistics, too, and writes to them without incrementing their version; ``copy_`` increments
  it. So if an operator hides its write to an input, only such operators touch it, and those that stay in the graph are
  given copies (``copy_for_the_rest``);
- the backend makes graphs functional (``makes_functional``). The version of an input is then incremented by a call of
  the compiled graph, with or without regions.

The input is small (``MOST_BYTES``), because its memory is read and written once more than without a region. It is
contiguous, all of its memory, and its sizes are numbers, so that the copy looks like it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.fx
from torch._dynamo.regions.keys import node_storages
from torch._dynamo.regions.outline.graph_view import GraphView, requires_grad
from torch._higher_order_ops.region_metadata import fresh, is_static
from torch.fx.operator_facts import hides_its_writes, target_name, written_operands


if TYPE_CHECKING:
    from torch._dynamo.regions.frame import RegionCall

Node = torch.fx.Node

# Statistics of 8,192 channels in float64.
MOST_BYTES = 1 << 16

_COPY = "region_copy"
# They write running statistics, by which they compute in evaluation only.
_NORMS = frozenset({"batch_norm", "native_batch_norm", "instance_norm"})


def makes_functional(backend: Any) -> bool:
    """Whether ``backend``, which a frame is compiled with, is known to make graphs functional before it runs them."""
    from torch._dynamo.backends import common, debugging  # these import Dynamo
    from torch._dynamo.eval_frame import innermost_backend

    backend = innermost_backend(backend)
    if isinstance(backend, torch._TorchCompileWrapper):
        backend = backend.compiler_fn
    known = (common.AotAutograd, torch._TorchCompileInductorWrapper)
    return isinstance(backend, known) or backend in (debugging.aot_eager, debugging.aot_eager_decomp_partition)


class Copied:
    """Decides which inputs of a frame's graph bodies write to a copy of.

    Each decision is made once, while the graph has all of the program's operators: what the call of a body does with an
    operand is not known here. What a stamp does is: the same as the call that it was stamped out of.
    """

    def __init__(self, calls: Iterable[RegionCall]) -> None:
        """``calls``: the outermost calls of the frame."""
        self._calls = calls
        self._decided: dict[Node, bool] = {}

    def __call__(self, given: Node) -> bool:
        if given not in self._decided:
            self._decided[given] = self._may_be_copied(given)
        return self._decided[given]

    def of(self, operands: Sequence[Node]) -> list[int]:
        """Indices of the ``operands`` of a call that are copied for it."""
        return [index for index, operand in enumerate(operands) if self._decided.get(operand)]

    @functools.cached_property
    def _taken_as(self) -> dict[Node, list[tuple[Node, Node]]]:
        """Stamp -> its operands, each with that of the traced call."""
        calls, found = [*self._calls], {}
        for call in calls:
            calls += call.inner
            operands = call.operands if call.stamps else []
            for stamp in call.stamps:
                found[stamp.node] = list(zip(stamp.operands, operands, strict=True))
        return found

    def _may_be_copied(self, given: Node) -> bool:
        """Whether a body may write to a copy of ``given``: see the Note above."""
        hiding: set[bool] = set()
        asked = [given]  # and what traced calls take in its place
        for each in asked:
            touching = _touching(each) if _looks_like_its_copy(each) else None
            if touching is None:
                return False
            for node in touching:
                if not _is_call(node):
                    hiding.add(hides_its_writes(node))
                elif node not in self._taken_as:
                    return False
                else:
                    asked += [theirs for ours, theirs in self._taken_as[node] if ours is each and theirs not in asked]
        return len(hiding) < 2


def _looks_like_its_copy(given: Node) -> bool:
    """Whether ``given`` is an input whose copy has its sizes, strides and storage."""
    value = given.meta["example_value"]
    if given.op != "placeholder" or not is_static(value) or not value.is_contiguous():
        return False
    size = value.numel() * value.element_size()
    return size <= MOST_BYTES and size == value.untyped_storage().nbytes()


def _touching(given: Node) -> list[Node] | None:
    """The nodes that touch the memory of ``given``.

    None if something takes a view of it, other than to write to it (``a.mul_(2).add_(1)``), or if a value computed from
    it may be needed in a backward.
    """
    own = set(node_storages(given))
    found: list[Node] = []
    seen, queue = {given}, [given]
    while queue:
        node = queue.pop()
        for user in node.users:
            if user in seen or user.op == "output" or is_copy(user):
                continue
            touches = not own.isdisjoint(node_storages(node))
            if touches:
                found.append(user)
            if touches and _is_call(user):  # it is given a copy; what it computes may be computed from it
                computed = [result for result in user.users if not requires_grad(result)]
                seen.update(computed)
                queue += computed
                continue
            if _keeps_statistics(user, node):
                continue
            others = {s for written in written_operands(user) for s in node_storages(written)} - own
            is_view = not own.isdisjoint(node_storages(user)) and not all(
                user in written_operands(u) for u in user.users
            )
            if others or is_view or _is_call(user) or requires_grad(user):
                return None
            seen.add(user)
            queue.append(user)
    return found


def _is_call(node: Node) -> bool:
    return node.target is torch.ops.higher_order.invoke_subgraph


def _keeps_statistics(node: Node, operand: Node) -> bool:
    """Whether ``node`` is a norm in training, which writes its statistics to ``operand`` and computes without it."""
    return target_name(node) in _NORMS and hides_its_writes(node) and operand in written_operands(node)


def may_be_written(given: Node) -> bool:
    """Whether a body may write to the input ``given``, in a frame without gradients."""
    return True


def number_copied(view: GraphView, start: int, end: int) -> int:
    """How many inputs a call of the run [start, end) copies back."""
    if not isinstance(view.writable, Copied):
        return 0
    return len({s for i in range(start, end) for s in view.written_at(i) & view.open})


def copy_inputs(graph: torch.fx.Graph, inputs: Sequence[Node]) -> list[Node]:
    """Emits a copy of each of ``inputs`` where ``graph`` inserts."""
    copies = []
    for given in inputs:
        copy = graph.call_method("clone", (given,))
        copy.meta = {"example_value": example_of_copy(given), _COPY: True}
        copies.append(copy)
    return copies


def is_copy(node: Node) -> bool:
    """Whether ``node`` makes a copy for a body to write to, or copies it back."""
    return _COPY in node.meta


def copy_back(graph: torch.fx.Graph, operand: Node, result: Node) -> None:
    """Emits the write of ``result``, which a call returns, to the input ``operand``."""
    write = graph.call_method("copy_", (operand, result))
    meta = {k: v for k, v in result.meta.items() if k == "stack_trace"}
    write.meta = {**meta, "example_value": operand.meta["example_value"], _COPY: True}


def copy_for_the_rest(graph: torch.fx.Graph) -> None:
    """Gives copies to the operators outside of bodies that hide a write to an input that is copied back to."""
    back = {node.args[0] for node in graph.nodes if is_copy(node) and node.target == "copy_"}
    for node in [n for n in graph.nodes if back.intersection(n.all_input_nodes) and hides_its_writes(n)]:
        written = [operand for operand in node.all_input_nodes if operand in back]
        with graph.inserting_before(node):
            copies = copy_inputs(graph, written)
        with graph.inserting_after(node):
            for operand, copy in zip(written, copies, strict=True):
                node.replace_input_with(operand, copy)
                copy_back(graph, operand, copy)


def example_of_copy(node: Node) -> Any:
    """A fake tensor like the value of ``node``, in memory of its own."""
    value = node.meta["example_value"]
    return fresh([value], value.fake_mode, {})[0]
