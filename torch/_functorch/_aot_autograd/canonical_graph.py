"""A Dynamo graph as a value: equal for graphs that differ only in names, or in an order that no result depends on.

``CanonicalGraph`` walks a graph module once, without renaming or recompiling anything. It makes a list of records of
plain values, one for each node: the operator, the operands as numbers of records, the constants by type and value, and
the metadata that is read below AOTAutograd. See Note [Numbers for names].

Raises ``UnkeyableGraph`` for a value that cannot be distinguished from others; such a graph is not cached.

Note [Numbers for names]

A record may name another node only by its number, so no name of a placeholder, an intermediate value or an attribute
gets into the result.  The numbers are the indices of the nodes in a walk that any two equal graphs have in common:

- placeholders first, in their order: it is the calling convention;
- then, for each node that must stay in its place (a "fixed" node: it writes, draws random numbers, changes global
  state, or is not known), and for the output, its operands depth first, operands in order, and then itself.

The walk depends on what is connected to what, and not on the order in which independent nodes stand.  Two nodes that
compute the same stay two: each is visited once, and later mentions repeat its number.

A free node that leads to no fixed one is not visited: its result is not used. Moving a node is only free between two
fixed nodes: a value that is read before a write differs from one that is read after it. So each record has the number
of fixed nodes before it. Two graphs with equal records have the same fixed nodes in the same order, and between two of
them the same free ones, of which any topological order computes the same.

What is looked up by a string in the graph module becomes a number too: bodies of higher-order operators by first
use, parameters and buffers by their index among the inputs of AOTAutograd, identifiers of regions by first use.
"""

from __future__ import annotations

import enum
import functools
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.fx
from torch._dynamo.utils import numpy_wrapper_cache_key
from torch._higher_order_ops.invoke_subgraph import NestedCompileRegionOptions
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.fx import operator_facts
from torch.fx.graph_module import _get_attr
from torch.fx.node import _get_qualified_name


Node = torch.fx.Node
GraphModule = torch.fx.GraphModule
# Serializes a value that this file does not know; different values must have different bytes.
Serialize = Callable[[Any], bytes]
# Selects a node's metadata for its record; other compilers read other metadata than AOTAutograd does.
Describe = Callable[[Node], Any]


class UnkeyableGraph(Exception):
    """A part of the graph has no key that distinguishes it from others."""


_INVOKE_SUBGRAPH = torch.ops.higher_order.invoke_subgraph

# Metadata of nodes that is read below AOTAutograd. All other metadata is derived from the graph and its inputs (example
# values) or only displayed (stack traces, module paths).
_META_READ = (
    "custom",  # annotations of the user: budgets and streams for the partitioner, options of a region
    "recompute",  # checkpoint policy of an operator
    "partitioner_tag",  # side of the partition that an operator is bound to
    "has_backward_hook",  # the partitioner saves such a value
    "autograd_backward",  # the operator is part of a backward that the program itself runs
    "quantization_tag",
    "quant_options",
    "is_wrapped",  # a function that the user vouches for, and
    "user_cache_hash",  # the user's word for what it does
)
# The number of a checkpointed block. Only which operators share it matters.
_GROUP_META = "ac_graph_id"
# Metadata of a body that records its origin, not its behavior.
_BODY_META_IGNORED = frozenset({"dynamo_flat_name_to_original_fqn", "dynamo_compile_id", "backend_id"})
# The bodies that AOTAutograd looks up by name, not through a node.
_BODIES_BY_NAME = ("saved_tensors_hooks_pack_0", "saved_tensors_hooks_unpack_0")

_PLAIN = (int, float, str, bool, complex, type(None), type(...), bytes)
_TORCH_CONSTANTS = (torch.dtype, torch.layout, torch.memory_format)


class CanonicalGraph:
    """The records of one graph module and of all bodies that it calls.

    ``records`` has one list of records for each module: the root first, then bodies by first use. A record refers to
    its target by a number in ``targets``. ``examples`` has one node for each target, and every node that calls a
    method; whether the graph may be cached is checked on these nodes.
    """

    def __init__(self, root: GraphModule, serialize: Serialize, describe: Describe | None = None) -> None:
        self.serialize = serialize
        self.describe = describe
        self.modules: list[GraphModule] = []
        self.records: list[list[tuple[Any, ...]]] = []
        self._numbers: dict[int, int] = {}  # id of a body -> its number
        self._other_modules: dict[int, int] = {}
        self._identifiers: dict[str, int] = {}
        self._groups: dict[Any, int] = {}
        self.targets: list[Any] = []
        self.numbers_of_targets: dict[Any, int] = {}
        self.examples: dict[Any, Node] = {}
        self._indices = _indices_of_inputs(root)
        self.body(root)
        for name in _BODIES_BY_NAME:
            if isinstance(getattr(root, name, None), GraphModule):
                self.records[0].append(("by name", name, self.body(getattr(root, name))))
        # Whether an operator may write to what it is given.
        self.writes = any(map(_writes, self.modules))

    def let_go(self) -> None:
        """Releases the graph; the records stay."""
        self.modules.clear()
        self.examples.clear()

    def body(self, module: GraphModule) -> int:
        """Number of a body; its records are made when the walk first reaches it."""
        found = self._numbers.get(id(module))
        if found is None:
            found = self._numbers[id(module)] = len(self.modules)
            self.modules.append(module)
            self.records.append([])
            _Walk(self, module, self.records[found]).run()
        return found

    def attribute(self, module: GraphModule, name: str) -> tuple[Any, ...]:
        """The key of what a ``get_attr`` or ``call_module`` node of ``module`` refers to."""
        value = _get_attr(module, name)
        if isinstance(value, GraphModule):
            return ("body", self.body(value))
        if isinstance(value, torch.nn.Module):
            return self._plain_module(value)
        if isinstance(value, torch.Tensor):
            indices = self._indices.get(id(value))
            if indices is None:
                # AOTAutograd would bake its elements into the program.
                raise UnkeyableGraph(f"{name} is a tensor that is neither a parameter nor a buffer")
            return ("input", *indices)
        return ("object", self.serialize(value))

    def _plain_module(self, module: torch.nn.Module) -> tuple[Any, ...]:
        number = self._other_modules.setdefault(id(module), len(self._other_modules))
        tensors = (*module.parameters(), *module.buffers())
        return ("module", number, self.serialize(module), [self._indices.get(id(t)) for t in tensors])

    def identifier(self, name: str) -> tuple[str, int]:
        """Key of a region's identifier, by which its calls share compiled code."""
        return ("region", self._identifiers.setdefault(name, len(self._identifiers)))

    def group(self, number: Any) -> int:
        return self._groups.setdefault(number, len(self._groups))

    def target(self, node: Node) -> int:
        """Number of the target of a node, by first use."""
        target = node.target
        number = self.numbers_of_targets[target] = len(self.targets)
        self.examples[target] = node
        self.targets.append(target if isinstance(target, str) else _target_key(target))
        return number


def _writes(module: GraphModule) -> bool:
    region = torch.ops.higher_order.invoke_subgraph
    calls = (node for node in module.graph.nodes if node.op in ("call_function", "call_method"))
    # A body is among the modules itself.
    of_its_own = (node for node in calls if node.target is not region and not operator_facts.runs_its_bodies(node))
    return any(map(operator_facts.written_operands, of_its_own))


class _Walk:
    """Makes the records of one module. See Note [Numbers for names]"""

    def __init__(self, graph: CanonicalGraph, module: GraphModule, records: list[tuple[Any, ...]]) -> None:
        self.graph = graph
        self.describe = graph.describe
        self.module = module
        self.records = records
        self.number: dict[Node, int] = {}
        self.fixed_before: dict[Node, int] = {}
        self.attributes: dict[tuple[Any, ...], int] = {}

    def run(self) -> None:
        self.records.append(("module", self.module.training, self._module_meta()))
        roots = []
        fixed = 0
        for node in self.module.graph.nodes:
            op = node.op
            self.fixed_before[node] = fixed
            if op == "placeholder":
                self._record(node)
            elif op != "get_attr" and not _is_free(node):
                roots.append(node)
                fixed += 1
        for root in roots:
            self._visit(root)

    def _visit(self, root: Node) -> None:
        number = self.number
        stack = [root]
        while stack:
            node = stack[-1]
            if node in number:
                stack.pop()
                continue
            known = len(stack)
            for operand in reversed(node._input_nodes):
                if operand not in number:
                    stack.append(operand)
            if len(stack) == known:
                stack.pop()
                self._record(node)

    def _record(self, node: Node) -> None:
        op = node.op
        if op == "call_function" or op == "call_method":
            target: Any = self.graph.numbers_of_targets.get(node.target)
            if target is None:
                target = self.graph.target(node)
            if op == "call_method" or "is_wrapped" in node.meta:
                self.graph.examples[node] = node
        elif op == "get_attr" or op == "call_module":
            target = self.graph.attribute(self.module, str(node.target))
            if op == "get_attr":
                self._attribute(node, target)
                return
        else:
            target = None  # the name of a placeholder or of the output
        number, value = self.number, self._value
        args: Any = [number[a] if type(a) is Node else value(a) for a in node.args]
        if node.target is _INVOKE_SUBGRAPH and isinstance(node.args[1], str):
            args[1] = self.graph.identifier(node.args[1])
        kwargs = node.kwargs
        named = sorted((k, value(v)) for k, v in kwargs.items()) if kwargs else None
        if self.describe is not None:
            meta = self.describe(node)
        else:
            meta = None if _META_KEYS.isdisjoint(node.meta) else self._meta(node.meta)
        number[node] = len(self.records)
        self.records.append((self.fixed_before[node], op, target, args, named, meta))

    def _attribute(self, node: Node, target: tuple[Any, ...]) -> None:
        # An attribute is the same value wherever, and however often, it is read.
        found = self.attributes.get(target)
        if found is None:
            found = self.attributes[target] = len(self.records)
            self.records.append(("attribute", *target))
        self.number[node] = found

    def _meta(self, meta: dict[str, Any]) -> list[Any]:
        kept = [(k, self._described(meta[k])) for k in _META_READ if k in meta]
        if _GROUP_META in meta:
            kept.append((_GROUP_META, self.graph.group(meta[_GROUP_META])))
        return kept

    def _module_meta(self) -> Any:
        if self.graph.modules[0] is self.module:
            return None  # Dynamo's data about the compile; what codegen reads of it is in other parts of the key
        kept = {k: v for k, v in self.module.meta.items() if k not in _BODY_META_IGNORED}
        # Stock's details contain the user's hash of a checkpoint's policy function.
        kept.pop("_checkpoint_context_fn", None)
        return self._described(kept)

    def _described(self, value: Any) -> Any:
        """Key of metadata, in which functions may occur."""
        if isinstance(value, dict):
            items = [(self._described(k), self._described(v)) for k, v in value.items()]
            return ("dict", sorted(items, key=repr))
        if isinstance(value, NestedCompileRegionOptions):
            return ("options", [self._described(v) for v in vars(value).values()])
        if isinstance(value, types.FunctionType) and not value.__module__.startswith("torch."):
            raise UnkeyableGraph(f"what {_get_qualified_name(value)} does is not known")
        return self._value(value)

    def _value(self, value: Any) -> Any:
        """Key of an argument: a number for a node; any other key names the type of its value."""
        kind = type(value)
        if kind is Node:
            return self.number[value]
        if kind in _PLAIN:
            return (kind.__name__, value)
        if kind in _TORCH_CONSTANTS:
            return (kind.__name__, str(value))
        if isinstance(value, (tuple, list)):
            # fx's own immutable containers count as plain ones; named tuples and sizes keep their type.
            name = "list" if isinstance(value, list) else "tuple" if kind is tuple else _get_qualified_name(kind)
            return (name, [self._value(v) for v in value])
        if isinstance(value, dict):
            # Order counts: a dict that the graph returns shows it to the caller.
            return ("dict", [(self._value(k), self._value(v)) for k, v in value.items()])
        if kind is slice:
            return ("slice", self._value(value.start), self._value(value.stop), self._value(value.step))
        return (f"{kind.__module__}.{kind.__qualname__}", self.graph.serialize(value))


_META_KEYS = frozenset({*_META_READ, _GROUP_META})


def _indices_of_inputs(root: GraphModule) -> dict[int, tuple[int, ...]]:
    """id of each parameter and buffer -> its indices among the inputs that AOTAutograd lifts."""
    indices: dict[int, tuple[int, ...]] = {}
    lifted: Iterable[Any] = (
        *(t for _, t in root.named_parameters(remove_duplicate=False)),
        *(t for _, t in root.named_buffers(remove_duplicate=False)),
    )
    for index, tensor in enumerate(lifted):
        indices[id(tensor)] = (*indices.get(id(tensor), ()), index)
    return indices


def _target_key(target: Any) -> Any:
    if isinstance(target, OpOverload):
        return ("overload", str(target))
    if isinstance(target, HigherOrderOperator):
        return ("higher order", target.name())
    if (wrapper := numpy_wrapper_cache_key(target)) is not None:
        return ("numpy", wrapper)
    return (type(target).__name__, _get_qualified_name(target))


class _Freedom(enum.Enum):
    """What is known of all calls of a target."""

    FREE = enum.auto()
    FIXED = enum.auto()
    ASK = enum.auto()  # the arguments decide


@functools.cache
def _freedom(op: str, target: Any) -> _Freedom:
    """Freedom of a target's calls in which no argument is called ``inplace``."""
    if target is getattr:
        return _Freedom.ASK
    probe = torch.fx.Graph().create_node(op, target, ())
    if operator_facts.operator_class(probe) is not operator_facts.OperatorClass.PURE:
        return _Freedom.FIXED
    name = operator_facts.target_name(probe)
    if name.removesuffix("_") in operator_facts._DROPOUT_ARGUMENTS or target in operator_facts._HIDDEN_WRITES:
        return _Freedom.ASK
    overloads = operator_facts.aten_overloads(name)
    if isinstance(target, (OpOverload, OpOverloadPacket)):
        overloads = tuple(operator_facts._overloads(target))
        if any(o._schema.is_mutable for o in overloads if o._overloadname != "out" or len(overloads) == 1):
            return _Freedom.FIXED
    writes = (name.endswith("_") and not name.startswith("__")) or name in _WRITING_NAMES
    writes |= name in operator_facts._HIDDEN_WRITERS or any(not o._schema.returns for o in overloads)
    brackets = target in operator_facts._BRACKETS or target in operator_facts._VMAP_OPERATORS
    fixed = writes or brackets or operator_facts.draws_random_numbers(probe)
    return _Freedom.FIXED if fixed else _Freedom.FREE


_WRITING_NAMES = frozenset(
    ["setitem", "__setitem__", "delitem", "__delitem__", *operator_facts._IN_PLACE_METHODS]
    + [o.__name__ for o in operator_facts._IN_PLACE_OPERATORS]
)


def _is_free(node: Node) -> bool:
    """Whether a node does nothing but compute its result, so that it may be moved between two fixed nodes."""
    if node.kwargs and not node.kwargs.keys().isdisjoint(_WRITING_KEYWORDS):
        return False
    freedom = _freedom(node.op, node.target)
    # A function of the program's is fixed, and its signature is not read.
    if freedom is _Freedom.FIXED or len(node.args) > operator_facts.inplace_position(node.target):
        return False
    if freedom is _Freedom.FREE:
        return True
    pure = operator_facts.operator_class(node) is operator_facts.OperatorClass.PURE
    return pure and not operator_facts.draws_random_numbers(node) and not operator_facts.written_operands(node)


_WRITING_KEYWORDS = frozenset({"out", "inplace"})
