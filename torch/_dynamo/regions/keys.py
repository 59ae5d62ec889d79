"""Keys of graph nodes: nodes with equal keys mean the same.

Two call nodes with equal ``NodeIdentity.key(node, state)`` compute the same function of their operands under the same
global state, and their operands and results have the same metadata.  The key leaves out

- the wiring, that is, which node feeds which: a region's signature compares it (regions/outline/graph_view.py);
- the line of the program, so that equal blocks on different lines are found.

A node that has no key raises ``Unkeyable`` and is never merged.  A comment beside each field of a key says what breaks
without it.
"""

from __future__ import annotations

import enum
import struct
import types
from collections.abc import Callable, Hashable
from typing import Any

import torch
import torch.fx
import torch.nn.functional as F
from torch._dynamo.regions.renamed import SYMBOLIC
from torch._higher_order_ops.metadata_keys import beyond_alignment, lifted_class, number
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.dtensor_facts import Mesh, is_dtensor, is_mesh, is_placement
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.fx.offset_facts import sees_offset
from torch.fx.operator_facts import argument_of, is_body, is_switch
from torch.utils._pytree import tree_leaves


Node = torch.fx.Node

# Constants that compare by value once their type is known. The type keeps bool apart from int,
# because True == 1, and str apart from its enum subclasses.
_BY_VALUE = frozenset(
    map(
        id,
        (
            bool,
            int,
            str,
            bytes,
            type(None),
            type(Ellipsis),
            torch.dtype,
            torch.device,
            torch.layout,
            torch.memory_format,
        ),
    )
)
# Objects that equal only themselves. A key holds the object instead of its id():
# an id may be reused after a roll-back, and would make two of them equal.
_BY_OBJECT = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    type,
    OpOverload,
    OpOverloadPacket,
    HigherOrderOperator,
)

# Node annotations that a later pass reads: two calls that differ in one must not share a body.
_MEANINGFUL_META = ("custom", "recompute", "ac_graph_id", "partitioner_tag", "ac_hooks")


# Target -> (position, keyword) of the argument that makes the gradient of a dense operand sparse.
_SPARSE_GRADIENTS: dict[Any, tuple[int, str]] = {
    F.embedding: (6, "sparse"),
    F.embedding_bag: (7, "sparse"),
    torch.embedding: (4, "sparse"),
    torch.embedding_bag: (5, "sparse"),
    torch.ops.aten.embedding.default: (4, "sparse"),
    torch.ops.aten._embedding_bag.default: (5, "sparse"),
    torch.gather: (3, "sparse_grad"),
    "gather": (3, "sparse_grad"),
    torch.ops.aten.gather.default: (3, "sparse_grad"),
}


class Unkeyable(Exception):
    """A value has no key; ``args[0]`` names the value."""


def _number_key(number: float | complex) -> Hashable:
    # By bits: -0.0 is not 0.0, and a NaN is the same constant as an equal NaN.
    if isinstance(number, complex):
        return (complex, struct.pack("<dd", number.real, number.imag))
    return (float, struct.pack("<d", number))


class Same:
    """Wraps an object to compare by identity.  Keeps the object alive, so that its id is not reused."""

    __slots__ = ("of",)

    def __init__(self, of: Any) -> None:
        self.of = of

    def __eq__(self, other: object) -> bool:
        return type(other) is Same and other.of is self.of

    def __hash__(self) -> int:
        return id(self.of)


def function_key(function: types.FunctionType) -> Hashable:
    """Key of what a Python function does: its code, globals, defaults and cells, by identity."""
    named = (function.__kwdefaults__ or {}).items()
    return (
        function.__code__,
        Same(function.__globals__),
        tuple(map(Same, function.__defaults__ or ())),
        tuple((name, Same(value)) for name, value in named),
        tuple(map(Same, function.__closure__ or ())),
    )


def constant_key(value: Any, leaf: Callable[[Any], Hashable] | None = None) -> Hashable:
    """Key of an argument: constants by type and value, containers by structure.

    ``leaf`` gives the key of operand nodes and tensors.  Raises Unkeyable for a value of any other kind.  Runs no code
    of the program: ``isinstance`` would read the value's ``__class__``.
    """
    kind = type(value)
    if id(kind) in _BY_VALUE:  # a comparison of classes may run the code of a metaclass
        return (kind, value)
    if kind is float or kind is complex:
        return _number_key(value)
    if leaf is not None and issubclass(kind, (Node, torch.Tensor)):
        return leaf(value)
    if issubclass(kind, SYMBOLIC):
        return symbol_key(value)
    if is_placement(value):
        return (kind, value)
    if issubclass(kind, enum.Enum):
        # An enum class may define its own `name`, and a combination of flags has none.
        return (kind, object.__getattribute__(value, "_name_") or Same(value))
    if kind is slice:
        return (slice, *(constant_key(v, leaf) for v in (value.start, value.stop, value.step)))
    if kind is range:
        return (range, value.start, value.stop, value.step)
    if issubclass(kind, dict):
        return (dict, *((constant_key(k), constant_key(v, leaf)) for k, v in dict.items(value)))
    for base in (list, tuple):
        if issubclass(kind, base):
            # fx turns a list into its immutable one; a named tuple and torch.Size stay themselves.
            return (list if base is list else kind, *(constant_key(v, leaf) for v in base.__iter__(value)))
    if issubclass(kind, _BY_OBJECT):
        return ("is", value)
    raise Unkeyable(f"a constant of type {kind.__module__}.{kind.__qualname__}")


def symbol_key(value: torch.SymInt | torch.SymFloat | torch.SymBool) -> Hashable:
    """Key of a symbolic number: its expression.  Raises Unkeyable if the number depends on data."""
    if data_symbols(value):
        raise Unkeyable(f"the unbacked symbolic value {value}")
    return (type(value), value.node.expr)


def data_symbols(number: torch.SymInt | torch.SymFloat | torch.SymBool) -> set[Any]:
    """The unbacked symbols in ``number`` that an operator makes out of data.

    Sizes of inputs may be unbacked too (``mark_unbacked``). These are known when the frame begins, as backed ones are.
    """
    return free_unbacked_symbols(number) - number.node.shape_env.unbacked_inputs


def _dimensions_key(dims: Any) -> tuple[Hashable, ...]:
    for dim in dims:
        if type(dim) is not int:
            return tuple([dim if type(dim) is int else symbol_key(dim) for dim in dims])
    return tuple(dims)


def tensor_key(tensor: torch.Tensor) -> Hashable:
    """Metadata of a tensor that a traced body can see.

    Raises Unkeyable for subclasses, tensors that torch.func.grad tracks, layouts other than strided, quantized tensors
    and sizes that depend on data.
    """
    if type(tensor) is not FakeTensor:
        if is_dtensor(tensor):
            return _dtensor_key(tensor)
        if torch._C._functorch.is_batchedtensor(tensor):
            inner = torch._C._functorch.get_unwrapped(tensor)
            level = torch._C._functorch.maybe_get_level(tensor)
            return ("vmap", level, torch._C._functorch.maybe_get_bdim(tensor), tensor_key(inner), offset_of(inner))
        raise Unkeyable(f"a tensor of class {type(tensor).__name__}")
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise Unkeyable(f"a tensor of layout {tensor.layout}")
    if tensor.is_conj() or tensor.is_neg():
        # Operators resolve these lazy bits, but no region call can be dispatched on such an operand.
        raise Unkeyable("a tensor with the conj or neg bit")
    return (
        _dimensions_key(tensor.shape),
        # A body is compiled for its operands' strides and alignment.
        _dimensions_key(tensor.stride()),
        _offset_key(tensor),
        tensor.dtype,
        tensor.device,
        # Decides what the joint graph of a body differentiates.
        tensor.requires_grad,
        tensor.is_inference(),
    )


def _offset_key(tensor: torch.Tensor) -> Hashable:
    """What a body that does not see storage offsets is compiled for. See Note [A body does not see storage offsets]."""
    offset = tensor.storage_offset()
    if not isinstance(offset, torch.SymInt):
        return beyond_alignment(offset, tensor)
    key = symbol_key(offset)
    if not offset.node.expr.free_symbols <= {n.node.expr for n in tensor.shape if isinstance(n, torch.SymInt)}:
        return key
    beyond = beyond_alignment(offset.node.expr, tensor)
    return int(beyond) if beyond == 0 else key


def _dtensor_key(tensor: Any) -> Hashable:
    """Key of a DTensor: its local tensor, mesh, placements and global metadata."""
    if any(isinstance(number, torch.SymInt) for number in (*tensor.shape, *tensor.stride())):
        raise Unkeyable("a DTensor of symbolic sizes")
    _, context = tensor.__tensor_flatten__()
    local = tensor._local_tensor
    return ("dtensor", Mesh(tensor.device_mesh), constant_key(context), tensor_key(local), offset_of(local))


def offset_of(value: Any) -> Hashable:
    """Key of the storage offset of an example value, for an operator that sees it; None if it has none."""
    if type(value) is not FakeTensor or value.layout is not torch.strided:
        return None
    return number(value.storage_offset())


def hidden_key(value: torch.Tensor) -> Hashable:
    """What tracing may read of a fake tensor, besides its metadata, without an operator in the graph.

    These are the number that it is known to hold, whether and how it was made a view, and the size of its storage.
    """
    if type(value) is not FakeTensor or value.layout is not torch.strided:
        return None
    # The size of the storage may be symbolic where all sizes and strides are numbers.
    size = None if value._has_symbolic_sizes_strides else number(value.untyped_storage().size())
    return (known_number(value), view_kind(value), size)


def view_kind(value: torch.Tensor) -> Any:
    """How autograd says that the view ``value`` was made: in a no_grad block, for instance; None if it is no view."""
    return torch._C._autograd._get_creation_meta(value) if value._is_view() else None


def known_number(value: Any) -> Hashable | None:
    """Key of the number that a fake tensor is known to hold; None if its number is not known."""
    constant = value.constant if type(value) is FakeTensor else None
    return None if constant is None else constant_key(constant.tolist())


def lifted_key(value: Any) -> Hashable | None:
    """Key of an opaque object whose class is registered with hoist=True; None for anything else.

    Such an object is an operand, not a constant of the graph: an operator may take the name of its layer, for
    instance, and calls of one body may differ in it.
    """
    kind = lifted_class(value)
    return None if kind is None else ("lifted", kind)


def object_key(value: Any) -> Hashable | None:
    """Key of an object that may be an operand: a lifted one, or a mesh, whose groups tracing reads as constants."""
    return Mesh(value) if is_mesh(value) else lifted_key(value)


def node_storages(node: Node) -> list[int]:
    """Identities of the storages of a node's value (fake tensors share storages as real ones do)."""
    return value_storages(node.meta.get("example_value"))


def value_storages(value: object) -> list[int]:
    """Identities of the storages of an example value."""
    if type(value) is FakeTensor and value.layout is torch.strided:  # most are
        return [value.untyped_storage()._cdata]
    found = []
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            while torch._C._functorch.is_functorch_wrapped_tensor(leaf):
                leaf = torch._C._functorch.get_unwrapped(leaf)
            if is_dtensor(leaf):
                found += value_storages(leaf._local_tensor)  # type: ignore[attr-defined]
            try:
                found.append(leaf.untyped_storage()._cdata)
            except (NotImplementedError, RuntimeError):  # sparse layouts have none of their own
                found.append(id(leaf))
    return found


class _HashedOnce:
    """The key of a container of example values.  Each operator that takes one of n items has it: n hashes of n keys."""

    __slots__ = ("_hash", "key")

    def __init__(self, key: Hashable) -> None:
        self.key, self._hash = key, hash(key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _HashedOnce) and self._hash == other._hash and self.key == other.key)

    def __repr__(self) -> str:
        return repr(self.key)


class NodeIdentity:
    """Keys of the nodes of one graph.  Valid for one pass: metadata is read once per value."""

    def __init__(self, body_key: Callable[[Node], Hashable] | None = None) -> None:
        """``body_key(node)`` is the key of the subgraph that ``node`` refers to; it may raise Unkeyable."""
        self._body_key = body_key
        # id of a fake tensor, or of a container of them -> its key; the graph's metadata keeps each alive meanwhile.
        self._value_keys: dict[int, Hashable] = {}

    def value_key(self, value: Any) -> Hashable:
        """Key of an example value: a tensor, a symbolic number, a lifted object, or a container of these."""
        if isinstance(value, (torch.Tensor, tuple, list)):
            found = self._value_keys.get(id(value))
            if found is None:
                found = self._value_keys[id(value)] = self._new_key(value)
            return found
        return object_key(value) or constant_key(value, self.value_key)

    def _new_key(self, value: torch.Tensor | tuple[Any, ...] | list[Any]) -> Hashable:
        if isinstance(value, torch.Tensor):
            return tensor_key(value)
        return object_key(value) or _HashedOnce(constant_key(value, self.value_key))

    def _leaf_key(self, leaf: Any) -> Hashable:
        if not isinstance(leaf, Node):
            raise Unkeyable("a tensor constant")
        if is_switch(leaf):
            return ("switch",)
        if self._body_key is not None and is_body(leaf):
            return ("body", self._body_key(leaf))
        if "example_value" not in leaf.meta:
            raise Unkeyable(f"operand {leaf.name}, of which no value is known")
        return ("operand", self.value_key(leaf.meta["example_value"]))

    def key(self, node: Node, state: Hashable) -> Hashable:
        """Key of a call node that was recorded under global state ``state``.  Raises Unkeyable."""
        if "example_value" not in node.meta and node.users and not is_switch(node):
            raise Unkeyable(f"the result of {node.name} is not known")
        if _has_sparse_gradient(node):
            raise Unkeyable(f"the gradient of {node.name} is sparse")
        return (
            node.op,
            constant_key(node.target),
            tuple(constant_key(a, self._leaf_key) for a in node.args),
            # The order of keywords means nothing.
            tuple((k, constant_key(v, self._leaf_key)) for k, v in sorted(node.kwargs.items())),
            self.value_key(node.meta.get("example_value")),
            _seen_offsets(node),
            tuple((name, constant_key(node.meta[name])) for name in _MEANINGFUL_META if name in node.meta),
            state,
        )


def _seen_offsets(node: Node) -> Hashable:
    """See Note [A body does not see storage offsets] in torch/fx/offset_facts.py."""
    if not sees_offset(node):
        return None
    return tuple(map(offset_of, tree_leaves([n.meta.get("example_value") for n in node.all_input_nodes])))


def _has_sparse_gradient(node: Node) -> bool:
    """Whether the backward of a node makes a sparse tensor, which no body can return: stock reads its storage."""
    value = node.meta.get("example_value")
    if not isinstance(node.target, Hashable) or node.target not in _SPARSE_GRADIENTS:
        return False
    asked = argument_of(node, _SPARSE_GRADIENTS[node.target], False)
    return asked is not False and (not isinstance(value, torch.Tensor) or value.requires_grad)
