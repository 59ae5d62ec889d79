"""The bodies that operators run: their keys, and whether such an operator may be in a region.

Note [An operator that runs its bodies]
Operators such as ``checkpoint``, ``cond``, ``while_loop``, ``map`` and ``scan`` run graphs that Dynamo has traced for
them. Such an operator may be in a region if the operators in its bodies may. Two such operators are equal if their
bodies are equal.

- The key of a body consists of its operators in recorded order, each by its own key (regions/keys.py), of its wiring,
  and of its inputs and outputs. Names are not part of it.
- A body may be in a region if all of its operators may: none has an effect, runs under a state other than that of the
  operator that runs the body, or writes to a value from outside the body. The life of a written value lies in the body;
  otherwise the body is in no region.
- AOTAutograd dissolves a checkpoint into its operators, so Note [Random numbers in a body] holds for them. A branch or
  a loop draws as often as the data say. No number of seeds is right for it, so it may not draw.
- All metadata of a body besides its graph must be known. For a checkpoint this is the function that says what is saved:
  the program's own code, which AOTAutograd runs for each operator. If many calls share a body, AOTAutograd runs it once
  for all of them. So it must be known to return the same each time: Note [A policy that only looks].

The ``get_attr`` node of a body is not an operand. A region's body has a ``get_attr`` node of its own for the graph that
the first region runs; the graphs of the other regions are equal to it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch.fx
from torch._dynamo.regions.keys import NodeIdentity, Unkeyable, constant_key, node_storages
from torch._dynamo.regions.outline.copies import is_copy
from torch._dynamo.regions.outline.graph_view import GraphView
from torch._dynamo.regions.outline.legality import IllegalReason, NodeState, illegal_nodes
from torch._dynamo.regions.policies import CHECKPOINT, CONTEXT_FN, policy_key
from torch.fx.operator_facts import draws_random_numbers, is_body, is_switch, runs_its_bodies, target_name


Node = torch.fx.Node
INVOKE = torch.ops.higher_order.invoke_subgraph
# Operators that Dynamo records as one node -> how many AOTAutograd makes of it in inference, with biases (torch 2.13).
# Each has matrix products inside, so a body that begins or ends with one takes little from fusion.
COMPOSED = {
    "gru_cell": 22,
    "lstm_cell": 19,
    "rnn_relu_cell": 6,
    "rnn_tanh_cell": 6,
    "multi_head_attention_forward": 35,
}


def is_of_call(node: Node) -> bool:
    """Whether ``node`` belongs to a call of a body: it stands for operators, and is none itself."""
    if node.target is operator.getitem:
        return isinstance(node.args[0], Node) and node.args[0].target is INVOKE
    return node.target is INVOKE or is_copy(node)


def _is_known(module: torch.fx.GraphModule) -> bool:
    """Whether ``module`` has no metadata but that which this file inspects."""
    return module.meta.keys() <= {CONTEXT_FN}


class Bodies:
    """The graphs that operators of one frame run. They do not change while the frame is outlined."""

    def __init__(
        self,
        modules: Mapping[str, Any],
        view: Callable[[torch.fx.Graph], GraphView],
        states: Callable[[], Callable[[Node], NodeState | None]],
        state_of: Callable[[Node], Hashable],
        written: Callable[[Node, Bodies], list[Node]],
    ) -> None:
        """``modules``: name -> what a ``get_attr`` node of that name stands for. ``view(graph)`` makes a ``GraphView``.

        ``states()(node)`` compares the state of a node with that of the frame; ``state_of(node)`` is the number of its
        state; ``written(node, bodies)`` are the operands that it writes to.
        """
        self._modules = modules
        self._view = view
        self._written = written
        self._states = states
        self._state_of = state_of
        self._identity = NodeIdentity(self.key)
        # Each body has one name, so these are keyed by name.
        self._sizes: dict[str, int] = {}
        self._keys: dict[str, Hashable] = {}
        self._illegal: dict[str, IllegalReason | None] = {}
        self._writers: dict[str, list[Node]] = {}

    def module(self, node: Node) -> torch.fx.GraphModule | None:
        """The body that ``node`` stands for, or None."""
        found = self._modules.get(str(node.target)) if is_body(node) else None
        return found if isinstance(found, torch.fx.GraphModule) else None

    def size(self, node: Node) -> int:
        """How many operators ``node`` counts as: one that is composed of others, or runs bodies, counts as those."""
        if not runs_its_bodies(node):
            return COMPOSED.get(target_name(node), 1)
        return sum(self._size_of_body(operand) for operand in node.all_input_nodes if is_body(operand)) or 1

    def _size_of_body(self, node: Node) -> int:
        name = str(node.target)
        if name not in self._sizes:
            module = self.module(node)
            nodes = module.graph.nodes if module is not None else ()
            self._sizes[name] = sum(self.size(n) for n in nodes if n.op in ("call_function", "call_method"))
        return self._sizes[name]

    def written(self, node: Node) -> list[Node]:
        """Operands of the operator ``node`` that its bodies write to: their inputs are its operands' fake tensors."""
        if node.target is INVOKE:
            return []  # it says itself what it writes to
        written = {s for n in self.writers(node) for operand in self._written(n, self) for s in node_storages(operand)}
        return [n for n in node.all_input_nodes if written.intersection(node_storages(n))]

    def writers(self, node: Node) -> list[Node]:
        """The operators in the bodies of the operator ``node`` that write to something."""
        return [writer for operand in node.all_input_nodes if is_body(operand) for writer in self._writers_in(operand)]

    def _writers_in(self, node: Node) -> list[Node]:
        name = str(node.target)
        if name not in self._writers:
            module = self.module(node)
            nodes = [n for n in module.graph.nodes if n.op != "output"] if module is not None else []
            self._writers[name] = [n for n in nodes if self._written(n, self)]
        return self._writers[name]

    def illegal(self, node: Node) -> IllegalReason | None:
        """Why the bodies of the operator ``node`` may not be in a region, or None."""
        for operand in node.all_input_nodes:
            if is_body(operand):
                if node.target is not CHECKPOINT and self._draws(operand):
                    return IllegalReason.RANDOM
                if (reason := self._illegal_body(operand)) is not None:
                    return reason
                if self._state_of_body(operand) != {self._state_of(node)}:
                    return IllegalReason.OTHER_STATE
        return None

    def _draws(self, node: Node) -> bool:
        """Whether a body draws random numbers, or an operator in it that runs bodies does."""
        module = self.module(node)
        nodes = [n for n in module.graph.nodes if n.op != "placeholder"] if module is not None else []
        return any(draws_random_numbers(n) or (is_body(n) and self._draws(n)) for n in nodes)

    def _state_of_body(self, node: Node) -> set[Hashable]:
        """Numbers of the states of the operators in a body. A switch counts as None, since it changes the state."""
        module = self.module(node)
        nodes = module.graph.nodes if module is not None else ()
        operators = [n for n in nodes if n.op in ("call_function", "call_method")]
        return {None if is_switch(n) else self._state_of(n) for n in operators}

    def _illegal_body(self, node: Node) -> IllegalReason | None:
        name = str(node.target)
        if name not in self._illegal:
            self._illegal[name] = self._why_illegal(self.module(node))
        return self._illegal[name]

    def _why_illegal(self, module: torch.fx.GraphModule | None) -> IllegalReason | None:
        if module is None or not _is_known(module):
            return IllegalReason.UNKNOWN_BODY
        try:
            policy_key(module.meta.get(CONTEXT_FN))
        except Unkeyable:
            return IllegalReason.UNKNOWN_POLICY
        reasons = illegal_nodes(self._view(module.graph), self._states(), self.illegal, self.module)
        return next(iter(reasons.values()), None)

    def key(self, node: Node) -> Hashable:
        """The key of the body that ``node`` stands for. Raises Unkeyable."""
        name = str(node.target)
        if name not in self._keys:
            module = self.module(node)
            if module is None or not _is_known(module):
                raise Unkeyable(f"{name}, which is no graph or more than one")
            self._keys[name] = self._key(module)
        return self._keys[name]

    def _key(self, module: torch.fx.GraphModule) -> Hashable:
        number: dict[Node, int] = {}
        records: list[Hashable] = [policy_key(module.meta.get(CONTEXT_FN))]
        for node in module.graph.nodes:
            if is_body(node):
                continue
            if node.op == "placeholder":
                records.append(("takes", self._identity.value_key(node.meta.get("example_value"))))
            elif node.op == "output":
                records.append(("returns", constant_key(node.args, number.__getitem__)))
            else:
                operands: list[Node] = []
                torch.fx.map_arg((node.args, node.kwargs), operands.append)
                wiring = tuple(number[operand] for operand in operands if not is_body(operand))
                records.append((self._identity.key(node, self._state_of(node)), wiring))
            number[node] = len(number)
        return tuple(records)
