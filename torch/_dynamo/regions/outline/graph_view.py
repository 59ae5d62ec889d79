"""Which values cross the boundary of a region, and whether they may.

Note [Regions are intervals of program order]
A region is a run of consecutive operators in the order in which Dynamo recorded them. That order is a linear extension
of *every* order that matters: data, writes before and after reads, random numbers, autocast and grad mode, effects.
Replacing disjoint runs of a linear order by one call each, in place, leaves a linear order. So regions are convex by
construction, no cycle can arise, and nothing outside a region moves past anything else. No dependency edges have to be
found, so none can be missed. A node that may not be in a region ends the region; a region never skips a node.

Note [What may cross the boundary]
The body becomes an ``invoke_subgraph`` call. Its operands are tensors and symbolic ints, its results are fresh tensors,
and autograd sees it as one function. Hence, for a run of nodes [start, end):

1. An operand is a tensor or an int. A getitem of an outside tuple stays outside.
2. A result is a tensor that shares its storage neither with an operand nor with another result. It is no view if the
   graph returns its storage: flat AOTAutograd would return a tensor of its own for a lone view, whereas a region would
   return the body's view to the user.
3. A ``Span`` is inside as a whole, or outside. A storage that is written is a span from its first node to its last
   write; after that, any node may read it. (So the metadata of a fake tensor, read at the end of tracing, is the
   metadata that every node of the body saw.) A vmap is a span from the push of its level to the pop. The exception is
   stated in Note [A region may write to an input].
4. A result that requires grad reaches the backward, as far as the graph shows. Others would give the body a backward of
   its own: Note [A result without a gradient] in torch/_higher_order_ops/missing_gradients.py.
5. A tensor whose number is known when it is traced (``torch.tensor(2)``) is no result, and an operand only of
   elementwise operators. Others (``x[k]``) may ask for the number, and a body does not know its operands' numbers.

``GraphView.offences`` returns the nodes that break a rule; the fitter splits the run at them.

Note [A region may write to an input]
A layer writes its keys and values in its middle. If their whole life were a span, the span would begin before the
graph, and no layer could be a region. If the frame begins without grad mode, AOTAutograd supports a call that writes to
an operand, and Inductor performs the write in place; with grad mode, see Note [A body writes to a copy]. So an input of
the graph is *open* if only operators of torch write to it, none of them writes more than its elements, and it is not
part of the autograd graph. A region may hold any of the nodes that touch an open input, if the input itself is the
region's only operand in that memory: the body treats two operands as separate memory. AOTAutograd supports such a call
neither inside a called body, nor around another call or an operator of the user's that writes. So writes are kept out
of a region in which the program marks others or which has such an operator, and a body that writes is not searched for
calls.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Hashable, Iterable

import torch
import torch.fx
from torch._dynamo.regions.keys import known_number, node_storages, object_key
from torch._dynamo.regions.outline.casts import keeping_casts
from torch._dynamo.regions.outline.spans import Span, SwitchSpans, switch_spans, vmap_spans
from torch._dynamo.regions.outline.symbols import with_symbols
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.operator_facts import computes_elementwise, is_body, is_users_operator, writes_memory_only
from torch.utils._pytree import tree_leaves


Node = torch.fx.Node

# Ops of nodes that are not operators: inputs, attributes and the output of the graph.
INVISIBLE_OPS = frozenset({"placeholder", "get_attr", "output"})

_NOWHERE = -1


def inputs_of(region: list[Node]) -> list[Node]:
    """Values that a region takes from outside, by first use, each after its symbols.

    See Note [A body is given its symbols].
    """
    inside = set(region)
    operands: dict[Node, None] = {}

    def visit(operand: Node) -> Node:
        if operand not in inside and not is_body(operand):
            operands[operand] = None
        return operand

    for node in region:
        torch.fx.map_arg((node.args, node.kwargs), visit)
    return with_symbols(list(operands), region)


def _is_plain(value: object) -> bool:
    """Whether only the elements of a value can be written, and no gradient depends on them."""
    return type(value) is FakeTensor and value.layout is torch.strided and not value.requires_grad


def requires_grad(node: Node) -> bool:
    value = node.meta.get("example_value")
    leaves = [value] if isinstance(value, torch.Tensor) else tree_leaves(value)
    return any(isinstance(v, torch.Tensor) and v.requires_grad for v in leaves)


class GraphView:
    """The operators of a graph in program order, and what each reads, makes and keeps alive."""

    def __init__(
        self,
        graph: torch.fx.Graph,
        written_by: Callable[[Node], Iterable[Node]],
        wanted: Iterable[Node] = (),
        writable: Callable[[Node], bool] | None = None,
        closed: Iterable[Node] = (),
        attention_kernels: frozenset[str] | None = None,
        size_of: Callable[[Node], int] = lambda node: 1,
    ) -> None:
        """``written_by(node)``: the operands that a node writes to; ``size_of(node)``: how many operators it counts as.

        ``wanted``: nodes whose values are results of every region that contains them, used or not.
        ``writable``: whether a region may write to an input, if no ``closed`` node touches it (see the Note above).
        ``attention_kernels``: the kernels enabled when the frame began. If None, a region holds no switch of global
        state.
        """
        self.nodes: list[Node] = [n for n in graph.nodes if n.op not in INVISIBLE_OPS]
        # node -> its position; inputs and attributes of the graph have negative numbers.
        self.position: dict[Node, int] = {n: i for i, n in enumerate(self.nodes)}
        self._outside: list[Node] = [n for n in graph.nodes if n.op in INVISIBLE_OPS]
        self.position.update({node: -1 - k for k, node in enumerate(self._outside)})
        n = len(self.nodes)
        # position -> positions of the operands, in the order of args and kwargs.
        self.operands: list[list[int]] = [self._operand_positions(node) for node in self.nodes]
        # position -> last position that uses its value; n if the graph returns it.
        self.last_use: list[int] = [
            max((self.position[u] if u.op != "output" else n for u in node.users), default=_NOWHERE)
            for node in self.nodes
        ]
        self.storages: list[list[int]] = [node_storages(node) for node in self.nodes]
        self._outside_storages: list[list[int]] = [node_storages(node) for node in self._outside]
        # position -> positions of the operands that the node writes to, if any.
        self.writes: dict[int, list[int]] = {}
        for i, node in enumerate(self.nodes):
            if written := [self.position[operand] for operand in written_by(node)]:
                self.writes[i] = written
        # Storages of inputs that a region may write to.
        self.writable = writable
        self.open = frozenset() if writable is None else self._open_storages(writable, closed)
        self.switches = SwitchSpans() if attention_kernels is None else switch_spans(self.nodes, attention_kernels)
        self.keeping_casts = keeping_casts(self.nodes)  # see Note [A body keeps no casts]
        self.spans = [*self._written_spans(), *vmap_spans(self.nodes), *self.switches.spans]
        # position -> first and last position that a region with this node must hold.
        self._must_hold = self._held_together()
        self._returned = {
            storage
            for node in self._outside
            if node.op == "output"
            for operand in node.all_input_nodes
            for storage in self.storages_at(self.position[operand])
        }
        # position of a stamped call -> which operands it reads: see draws.py.
        self.read_by: dict[int, Callable[[set[int], set[int]], list[int]]] = {}
        self.live_width = self._live_widths()
        self.needs_grad = [requires_grad(node) for node in self.nodes]
        self.reaches_backward = self._reaching_backward()
        self._wanted = {self.position[node] for node in wanted}
        self.sizes = [size_of(node) for node in self.nodes]
        self._before = [0, *itertools.accumulate(self.sizes)]

    def size(self, start: int, length: int) -> int:
        """How many operators a run of ``length`` nodes counts as, including those in bodies."""
        return self._before[start + length] - self._before[start]

    def _held_together(self) -> dict[int, tuple[int, int]]:
        found: dict[int, tuple[int, int]] = {}
        for span in self.spans:
            for i in span.members:
                first, last = found.get(i, (i, i))
                found[i] = min(first, span.first), max(last, span.last)
        return found

    def is_in_span(self, position: int) -> bool:
        """Whether the node belongs to a span, such as the life of a written value."""
        return position in self._must_hold

    def node_at(self, position: int) -> Node:
        return self.nodes[position] if position >= 0 else self._outside[-1 - position]

    def storages_at(self, position: int) -> list[int]:
        return self.storages[position] if position >= 0 else self._outside_storages[-1 - position]

    def storages_outside(self) -> set[int]:
        """Storages of the graph's inputs and attributes, and of what it returns."""
        return {*self._returned, *itertools.chain.from_iterable(self._outside_storages)}

    def _operand_positions(self, node: Node) -> list[int]:
        found: list[int] = []

        def visit(operand: Node) -> None:
            if not is_body(operand):  # no value; the body is part of the operator's key
                found.append(self.position[operand])

        torch.fx.map_arg((node.args, node.kwargs), visit)
        return found

    def written_at(self, position: int) -> set[int]:
        """Storages that the node at ``position`` writes to."""
        return {s for operand in self.writes.get(position, ()) for s in self.storages_at(operand)}

    def _open_storages(self, writable: Callable[[Node], bool], closed: Iterable[Node]) -> frozenset[int]:
        """See Note [A region may write to an input]."""
        written = {s for i in self.writes for s in self.written_at(i)}
        for node in closed if written else ():
            written -= self.touched(self.position[node])
        holders: dict[int, list[Node]] = {s: [] for s in written}
        for node in self._outside if written else ():
            for s in written.intersection(self.storages_at(self.position[node])):
                if node.op != "output":
                    holders[s].append(node)
        alone = {s for s, nodes in holders.items() if len(nodes) == 1 and nodes[0].op == "placeholder"}
        for position in range(-len(self._outside), len(self.nodes) if alone else 0):
            own = alone.intersection(self.storages_at(position))
            if own and not _is_plain(self.node_at(position).meta.get("example_value")):
                alone -= own
        for i in self.writes if alone else ():
            if not writes_memory_only(self.nodes[i]) or is_users_operator(self.nodes[i]):
                alone -= self.written_at(i)
        return frozenset(s for s in alone if writable(holders[s][0]))

    def _written_spans(self) -> list[Span]:
        """For each written storage that is not open: the span from its first node to its last write."""
        spans: dict[int, Span] = {}
        for i in self.writes:
            for storage in self.written_at(i) - self.open:
                spans.setdefault(storage, Span(len(self.nodes), i, [])).last = i
        if not spans:
            return []
        for position in range(-len(self._outside), 0):
            for storage in self.storages_at(position):
                if storage in spans:
                    spans[storage].first = -1
        for position in range(len(self.nodes)):
            for storage in self.touched(position) & spans.keys():
                span = spans[storage]
                if position <= span.last:
                    span.first = min(span.first, position)
                    span.members.append(position)
        return list(spans.values())

    def _live_widths(self) -> list[int]:
        """width[i]: how many values made before position i are used at i or later."""
        change = [0] * (len(self.nodes) + 2)
        for i, last in enumerate(self.last_use):
            if last > i:
                change[i + 1] += 1
                change[last + 1] -= 1
        width, now = [], 0
        for i in range(len(self.nodes) + 1):
            now += change[i]
            width.append(now)
        return width

    def _reaching_backward(self) -> list[bool]:
        """position -> whether a gradient can flow back to its value."""
        n = len(self.nodes)
        reaching = [last == n for last in self.last_use]
        # Storages that a later node with a gradient touches, those of the graph's inputs, and those that it returns.
        read_later = {s for k in range(-len(self._outside), 0) for s in self.storages_at(k)} | self._returned
        for i in range(n - 1, -1, -1):
            if reaching[i] and self.needs_grad[i]:
                read_later.update(self.touched(i) if self.spans else ())
            elif not any(read_later.intersection(self.storages_at(w)) for w in self.writes.get(i, ())):
                continue
            for operand in self.operands[i]:
                if operand >= 0:
                    reaching[operand] = True
        return reaching

    def outputs(self, start: int, end: int) -> list[int]:
        """Positions in [start, end) whose values are used at ``end`` or later."""
        last_use = self.last_use
        return [i for i in range(start, end) if last_use[i] >= end or i in self._wanted]

    def inputs(self, start: int, end: int) -> list[int]:
        """Positions of the values used in [start, end) and made before it, by first use."""
        found: dict[int, None] = {}
        for i in range(start, end):
            for operand in self.operands[i]:
                if operand < start:
                    found[operand] = None
        return list(found)

    def _wires(self, start: int, end: int) -> tuple[tuple[int, ...], list[int]]:
        """The wire of each operand in [start, end), and the inputs by first use.

        A wire is the index of a node in the run, or negative for an input, numbered by first use.
        """
        number: dict[int, int] = {}
        wires: list[int] = []
        for i in range(start, end):
            for operand in self.operands[i]:
                if operand >= start:
                    wires.append(operand - start)
                else:
                    wires.append(-1 - number.setdefault(operand, len(number)))
        return tuple(wires), list(number)

    def wiring(self, start: int, end: int) -> Hashable:
        """Which value of [start, end) feeds which: equal for two runs of equal keys iff they are identical.

        Keys alone do not tell f(a, a) from f(a, b).
        """
        return self._wires(start, end)[0]

    def signature(self, start: int, end: int) -> Hashable:
        """Equal for two runs of equal keys iff one body serves both. It consists of:

        - the wiring;
        - which inputs share a storage: a body may not assume more about its operands than holds for each call;
        - which values are used outside and must have a gradient (Note [What may cross the boundary], 4).
        """
        wiring, inputs = self._wires(start, end)
        shared: dict[int, int] = {}
        aliases = tuple(
            tuple(shared.setdefault(s, len(shared)) for s in self.storages_at(operand)) for operand in inputs
        )
        grads = tuple(i - start for i in self.outputs(start, end) if self.needs_grad[i])
        return wiring, aliases, grads

    def offences(self, start: int, end: int, results: Iterable[int]) -> set[int]:
        """Positions in [start, end) that break a rule of Note [What may cross the boundary].

        ``results``: indices (from ``start``) of the values that the body returns, because this run or another run that
        shares the body uses them outside.
        """
        broken: set[int] = set()
        taken: set[int] = set()
        for operand in self.inputs(start, end):
            value = self.node_at(operand).meta.get("example_value")
            plain = isinstance(value, (torch.Tensor, int, torch.SymInt)) and not isinstance(value, bool)
            refused = not plain and object_key(value) is None
            if refused or known_number(value) is not None:
                readers = (i for i in range(start, end) if operand in self.operands[i])
                broken.update(i for i in readers if refused or not self._ignores_number(i))
            taken.update(self.storages_at(operand))
        for i in range(start, end):
            first, last = self._must_hold.get(i, (i, i))
            if first < start or last >= end:
                broken.add(i)
        broken |= self._written_elsewhere(start, end)
        for index in sorted(results):
            i = start + index
            value = self.nodes[i].meta.get("example_value")
            lost = self.needs_grad[i] and not self.reaches_backward[i]
            lost = lost or (self.is_returned(i) and self.is_view(i))
            lost = lost or known_number(value) is not None
            if lost or not isinstance(value, torch.Tensor) or taken.intersection(self.storages[i]):
                broken.add(i)
            taken.update(self.storages[i])
        return broken

    def _ignores_number(self, position: int) -> bool:
        """Whether tracing the node asks for no operand's number, and the number that the node makes is not known."""
        node = self.nodes[position]
        return computes_elementwise(node) and known_number(node.meta.get("example_value")) is None

    def _written_elsewhere(self, start: int, end: int) -> set[int]:
        """Positions in [start, end) that touch a written open storage which is not a single operand of the region."""
        writers = [i for i in range(start, end) if i in self.writes]
        broken = {s for i in writers for s in self.written_at(i) & self.open}
        if broken and not any(is_users_operator(self.nodes[i]) for i in writers):
            broken -= self.held_alone(self.inputs(start, end))
        if not broken:
            return broken
        return {i for i in range(start, end) if broken & self.touched(i)}

    def held_alone(self, operands: Iterable[int]) -> set[int]:
        """Open storages that exactly one of ``operands`` holds, namely the graph's input itself."""
        values = set(operands)
        holders = collections.Counter(s for operand in values for s in self.storages_at(operand))
        inputs = {s for operand in values if operand < 0 for s in self.storages_at(operand)}
        return {s for s in inputs & self.open if holders[s] == 1}

    def is_returned(self, position: int) -> bool:
        """Whether the graph returns the memory of the value at ``position``."""
        return not self._returned.isdisjoint(self.storages_at(position))

    def is_view(self, position: int) -> bool:
        """Whether the operator at ``position`` returns memory of its operands."""
        own = set(self.storages[position])
        sources = list(self.operands[position])
        while sources:
            operand = sources.pop()
            if own.isdisjoint(self.storages_at(operand)):
                continue
            if operand < 0 or isinstance(self.node_at(operand).meta.get("example_value"), torch.Tensor):
                return True
            # A tuple holds new tensors of its operator, or views of that operator's operands.
            sources += self.operands[operand]
        return False

    def touched(self, position: int) -> set[int]:
        """Storages of the value and of the operands of the node at ``position``."""
        found = set(self.storages[position])
        for operand in self.operands[position]:
            found.update(self.storages_at(operand))
        return found
