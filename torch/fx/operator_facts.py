"""Facts about the operator that a node calls: what it writes, draws and hides.

- Is its target one of torch's pure tensor operators (``operator_class``)?
- Does it draw random numbers (``draws_random_numbers``)?
- Does it write to, or have an unknown effect on, one of its operands (``written_operands``)?
"""

from __future__ import annotations

import builtins
import enum
import functools
import inspect
import operator
import sys
import types
from typing import Any

import torch
import torch.fx
import torch.nn.functional as F
from torch._functorch import predispatch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.fx.dtensor_facts import changes_layout


Node = torch.fx.Node


class OperatorClass(enum.Enum):
    """What is known about a node's target."""

    PURE = enum.auto()  # reads its operands, perhaps writes some (an in-place operator)
    READER = enum.auto()  # may have effects, but only reads its operands
    OPAQUE = enum.auto()  # anything may happen to its operands


NAMESPACES_OF_TORCH = frozenset({"aten", "prims"})
# Tensor attributes that Dynamo writes into the graph as getattr(x, name).
_PURE_ATTRIBUTES = frozenset({"T", "mT", "H", "mH", "real", "imag"})

# Tensor methods that have no operator of the same name, but are compositions of pure ones.
_COMPOSITE_METHODS = frozenset(
    ["bfloat16", "bool", "byte", "cdouble", "cfloat", "char", "double", "float", "half", "int", "long", "short", "type"]
)
# Tensor methods with an operator of the same name, which act on the autograd graph or on the storage, not on values.
_OPAQUE_METHODS = frozenset(
    [
        *("backward", "data", "detach_", "record_stream", "rename_", "requires_grad_", "resize_", "resize_as_"),
        *("retain_grad", "set_", "set_data", "share_memory_", "sparse_resize_"),
    ]
)
# Compositions in torch.nn.functional and torch.functional that draw random numbers, although no operator of the same
# name is tagged so.
_RANDOM_COMPOSITIONS = frozenset(
    [
        "dropout1d",
        "dropout2d",
        "dropout3d",
        "gumbel_softmax",
        "pca_lowrank",
        "svd_lowrank",
        *("fractional_max_pool2d", "fractional_max_pool2d_with_indices"),
        *("fractional_max_pool3d", "fractional_max_pool3d_with_indices"),
    ]
)
# (position, keyword) of the drop probability and of the training flag; None if the operator has no such argument.
_DROPOUT_ARGUMENTS: dict[str, tuple[tuple[int, str] | None, tuple[int, str] | None]] = {
    "dropout": ((1, "p"), (2, "training")),
    "dropout1d": ((1, "p"), (2, "training")),
    "dropout2d": ((1, "p"), (2, "training")),
    "dropout3d": ((1, "p"), (2, "training")),
    "alpha_dropout": ((1, "p"), (2, "training")),
    "feature_alpha_dropout": ((1, "p"), (2, "training")),
    "feature_dropout": ((1, "p"), (2, "train")),
    "multi_head_attention_forward": ((10, "dropout_p"), (13, "training")),
    "rrelu": (None, (3, "training")),
    "scaled_dot_product_attention": ((4, "dropout_p"), None),
}
# Calls that bracket operators (the push and pop of a vmap's level) or have no observable effect. Their operands and
# results are not tensors; a Span holds a pair of brackets together.
_BRACKETS = frozenset(
    {
        predispatch._vmap_increment_nesting,
        predispatch._vmap_decrement_nesting,
        predispatch.lazy_load_decompositions,
        torch._C._log_api_usage_once,
    }
)
# Names of higher-order operators that only run their bodies, on operands and by rules that are all in the graph. Such
# an operator writes and draws what its bodies do.
_RUNS_ITS_BODIES = frozenset({"tag_activation_checkpoint", "cond", "while_loop", "map_impl", "scan"})
_VMAP_OPERATORS = frozenset({predispatch._add_batch_dim, predispatch._remove_batch_dim})
# Functions that write to operands although neither name nor schema says so, and without incrementing the version of a
# fake tensor: target -> (operands written, argument that decides whether they are). That argument must be true or, for
# max_norm, given.
_HIDDEN_WRITES: dict[Any, tuple[tuple[tuple[int, str], ...], tuple[int, str, Any]]] = {
    F.batch_norm: (((1, "running_mean"), (2, "running_var")), (5, "training", False)),
    torch.batch_norm: (((3, "running_mean"), (4, "running_var")), (5, "training", True)),
    torch.native_batch_norm: (((3, "running_mean"), (4, "running_var")), (5, "training", True)),
    F.instance_norm: (((1, "running_mean"), (2, "running_var")), (5, "use_input_stats", True)),
    torch.instance_norm: (((3, "running_mean"), (4, "running_var")), (5, "use_input_stats", True)),
    F.embedding: (((1, "weight"),), (3, "max_norm", None)),
    # F.embedding_bag takes its first two arguments in either order.
    F.embedding_bag: (((0, "input"), (1, "weight")), (3, "max_norm", None)),
}
# Similar operators, by name; rare enough to count as writing to all of their operands.
_HIDDEN_WRITERS = frozenset(
    [
        "batch_norm",
        "instance_norm",
        "native_batch_norm",
        "_native_batch_norm_legit",
        "_batch_norm_impl_index",
        "_batch_norm_with_update",
        "batch_norm_update_stats",
        "cudnn_batch_norm",
        "miopen_batch_norm",
        "batch_norm_gather_stats",
        "batch_norm_gather_stats_with_counts",
        "fused_moving_avg_obs_fake_quant",
        "_fused_moving_avg_obs_fq_helper",
    ]
)
# Names of higher-order operators that act on the gradient of their operand. They must see all of it, also the part that
# comes from other operators of a body.
_CHANGES_AUTOGRAD = frozenset({"register_hook"})
_ELEMENTWISE = frozenset(
    [
        *("add", "sub", "mul", "div", "truediv", "true_divide", "pow", "maximum", "minimum", "where"),
        *("eq", "ne", "lt", "le", "gt", "ge", "iadd", "isub", "imul", "itruediv"),
    ]
)
# Targets that take gradients inside the graph.
_GRADIENT_TAKERS = frozenset({"grad", "backward", "_autograd_grad", "_autograd_backward"})


@functools.cache
def _pure_functions() -> frozenset[Any]:
    """torch's tensor functions, and Python's operators on tensors."""
    found: list[Any] = [*_BRACKETS, *_VMAP_OPERATORS]
    found += [getattr(operator, n) for n in operator.__all__]
    found += [getattr(builtins, n) for n in ("abs", "pow", "round")]
    for module in (
        torch._C._VariableFunctions,
        torch._C._nn,
        torch._C._linalg,
        torch._C._fft,
        torch._C._special,
    ):
        found += [getattr(module, n) for n in dir(module) if not n.startswith("__")]
    found += [getattr(torch.functional, n) for n in torch.functional.__all__]
    found += [v for n, v in vars(F).items() if callable(v) and not n.startswith("_")]
    # Dynamo records a size composed of other sizes, as in view(*x.size()[:-1], n), as a call of torch.Size.
    return frozenset(v for v in found if callable(v) and not isinstance(v, type)) | {torch.Size}


@functools.cache
def aten_overloads(name: str) -> tuple[OpOverload, ...]:
    """All overloads of aten's operator ``name``, none if there is no such operator."""
    packet = getattr(torch.ops.aten, name, None)
    return tuple(_overloads(packet)) if isinstance(packet, OpOverloadPacket) else ()


def _overloads(target: OpOverload | OpOverloadPacket) -> list[OpOverload]:
    if isinstance(target, OpOverload):
        return [target]
    return [getattr(target, name) for name in target.overloads()]


def target_name(node: Node) -> str:
    """Name of the operator that a node calls, without namespace and overload."""
    return operator_name(node.target)


def operator_name(target: Any) -> str:
    """Name of an operator that a node or the program may call, without namespace and overload."""
    if isinstance(target, str):
        return target.rpartition(".")[2]
    if isinstance(target, OpOverload):
        return target._schema.name.rpartition("::")[2]
    return getattr(target, "__name__", type(target).__name__)


def operator_class(node: Node) -> OperatorClass:
    """What is known about the target of a call node."""
    target = node.target
    if changes_layout(node):
        return OperatorClass.PURE
    if node.op == "call_method":
        return _method_class(str(target))
    if node.op != "call_function":
        return OperatorClass.OPAQUE
    if isinstance(target, OpOverload):
        return _overload_class(target)
    if isinstance(target, OpOverloadPacket):
        classes = {_overload_class(o) for o in _overloads(target)}
        return classes.pop() if len(classes) == 1 else OperatorClass.OPAQUE
    if isinstance(target, HigherOrderOperator):
        return OperatorClass.OPAQUE if target._name in _CHANGES_AUTOGRAD else OperatorClass.READER
    if target is getattr:
        pure = node.args[1] in _PURE_ATTRIBUTES
        return OperatorClass.PURE if pure else OperatorClass.OPAQUE
    if isinstance(target, types.MethodDescriptorType) or target_name(node) in _OPAQUE_METHODS:
        return _method_class(target_name(node))
    try:
        known = target in _pure_functions()
    except TypeError:  # not hashable, so not a function of torch
        known = False
    return OperatorClass.PURE if known else OperatorClass.OPAQUE


@functools.cache
def _method_class(name: str) -> OperatorClass:
    if name in _OPAQUE_METHODS or not hasattr(torch.Tensor, name):
        return OperatorClass.OPAQUE
    dunder = name.startswith("__") and callable(getattr(operator, name, None))
    known = dunder or name in _COMPOSITE_METHODS or bool(aten_overloads(name))
    return OperatorClass.PURE if known else OperatorClass.OPAQUE


@functools.cache
def _overload_class(overload: OpOverload) -> OperatorClass:
    if overload.namespace in NAMESPACES_OF_TORCH:
        return OperatorClass.PURE
    # torch may know an effect of a user's operator, which must then keep its place.
    from torch._higher_order_ops.effects import _get_effect

    return OperatorClass.READER if _get_effect(overload) is not None else OperatorClass.PURE


def is_bracket(node: Node) -> bool:
    """Whether a node only brackets operators, or has no effect at all."""
    return node.op == "call_function" and node.target in _BRACKETS and not node.users


@functools.cache
def _switches() -> frozenset[Any]:
    """Calls that change global state and have a recorded counterpart, and the calls that make their arguments."""
    attention = torch.nn.attention
    switches: list[Any] = [torch.amp._enter_autocast, torch.amp._exit_autocast, torch._C._set_grad_enabled]
    return frozenset([*switches, attention._sdpa_kernel, attention._backend_from_string])


def is_switch(node: Node) -> bool:
    """Whether a node changes global state or makes an argument of such a change; neither result is a tensor."""
    return node.op == "call_function" and node.target in _switches()


def argument_of(node: Node, where: tuple[int, str], default: Any) -> Any:
    """What a node gives for the parameter at ``where``, its position and keyword."""
    position, keyword = where
    if len(node.args) > position:
        return node.args[position]
    return node.kwargs.get(keyword, default)


def draws_random_numbers(node: Node) -> bool:
    """Whether running this node may advance a random number generator."""
    name = target_name(node)
    base = name[:-1] if name.endswith("_") and not name.endswith("__") else name
    if base in _DROPOUT_ARGUMENTS:
        probability, training = _DROPOUT_ARGUMENTS[base]
        if training is not None and argument_of(node, training, True) is False:
            return False
        if probability is not None:
            default = 0.0 if base == "scaled_dot_product_attention" else 0.5
            p = argument_of(node, probability, default)
            return not (isinstance(p, (int, float)) and p == 0)
        return True
    if base in _RANDOM_COMPOSITIONS:
        return True
    if isinstance(node.target, (OpOverload, OpOverloadPacket)):
        return any(torch.Tag.nondeterministic_seeded in o.tags for o in _overloads(node.target))
    return _is_seeded(name) or _is_seeded(base)


@functools.cache
def _is_seeded(name: str) -> bool:
    return any(torch.Tag.nondeterministic_seeded in overload.tags for overload in aten_overloads(name))


@functools.cache
def inplace_position(target: Any) -> int:
    """Position of the parameter ``inplace`` of a function written in Python; beyond all arguments if it has none."""
    parameters = list(inspect.signature(target).parameters) if isinstance(target, types.FunctionType) else []
    return parameters.index("inplace") if "inplace" in parameters else sys.maxsize


def takes_gradients(node: Node) -> bool:
    """Whether a node differentiates the part of the graph that leads to its operands."""
    return operator_class(node) is OperatorClass.OPAQUE and target_name(node) in _GRADIENT_TAKERS


def written_operands(node: Node) -> list[Node]:
    """Operands that a node writes to, or has an unknown effect on, as far as its target shows.

    The tracker adds the writes that only a run of the node shows (a changed version counter).
    """
    kind = operator_class(node)
    if kind is OperatorClass.OPAQUE:
        return list(node.all_input_nodes)
    if kind is OperatorClass.READER:
        return []
    name = target_name(node)
    if node.target in _HIDDEN_WRITES:
        return _hidden_writes(node)
    if name in _HIDDEN_WRITERS:
        return list(node.all_input_nodes)
    if isinstance(node.target, (OpOverload, OpOverloadPacket)):
        overloads = _overloads(node.target)
        if len(overloads) == 1:
            return _written_by_schema(node, overloads[0])
    in_place = name.endswith("_") and not name.startswith("__")
    in_place |= name in ("setitem", "__setitem__", "delitem")
    in_place |= node.target in _IN_PLACE_OPERATORS or name in _IN_PLACE_METHODS
    written: list[Node] = []
    if in_place:
        torch.fx.map_arg(node.args[:1], written.append)
    if argument_of(node, (inplace_position(node.target), "inplace"), False) not in (False, None):
        written += node.all_input_nodes[:1]
    if "out" in node.kwargs:
        torch.fx.map_arg(node.kwargs["out"], written.append)
    return written


def is_body(node: Node) -> bool:
    """Whether a node stands for a graph that an operator runs; a ``get_attr`` node of a tensor has an example value."""
    return node.op == "get_attr" and "example_value" not in node.meta


def runs_its_bodies(node: Node) -> bool:
    """Whether a node calls a higher-order operator that runs its bodies and does nothing else."""
    return isinstance(node.target, HigherOrderOperator) and node.target._name in _RUNS_ITS_BODIES


def is_users_operator(node: Node) -> bool:
    """Whether a node calls an operator that is registered with torch, but is not torch's own."""
    target = node.target
    return isinstance(target, (OpOverload, OpOverloadPacket)) and any(
        overload.namespace not in NAMESPACES_OF_TORCH for overload in _overloads(target)
    )


def writes_memory_only(node: Node) -> bool:
    """Whether a node changes only the elements of what it writes to: not its shape, strides, storage or class."""
    if operator_class(node) is OperatorClass.OPAQUE:
        return False
    packet = getattr(torch.ops.aten, target_name(node), None)
    overloads = _overloads(packet) if packet is not None else []
    return not any(torch.Tag.inplace_view in overload.tags for overload in overloads)


def computes_elementwise(node: Node) -> bool:
    """Whether a node is one of the operators that compute element by element, without asking what the elements are."""
    return target_name(node) in _ELEMENTWISE and not node.kwargs


def writes_a_list(node: Node) -> bool:
    """Whether a node writes to tensors in a list, as the ``_foreach_`` operators do."""
    direct = [a for a in (*node.args, *node.kwargs.values()) if isinstance(a, Node)]
    return any(operand not in direct for operand in written_operands(node))


def hides_its_writes(node: Node) -> bool:
    """Whether a node may write to operands without incrementing their version."""
    return node.target in _HIDDEN_WRITES or target_name(node) in _HIDDEN_WRITERS


def _hidden_writes(node: Node) -> list[Node]:
    operands, (position, keyword, default) = _HIDDEN_WRITES[node.target]
    decision = argument_of(node, (position, keyword), default)
    if decision is None or decision is False:
        return []
    values = [argument_of(node, operand, None) for operand in operands]
    return [value for value in values if isinstance(value, Node)]


_IN_PLACE_METHODS = frozenset(
    f"__i{n}__"
    for n in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
        *("and", "or", "xor", "lshift", "rshift"),
    )
)
_IN_PLACE_OPERATORS = frozenset(getattr(operator, n) for n in _IN_PLACE_METHODS)


def _written_by_schema(node: Node, overload: OpOverload) -> list[Node]:
    written: list[Node] = []
    if not overload._schema.is_mutable:
        return written
    for position, argument in enumerate(overload._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = argument_of(node, (position, argument.name), None)
            torch.fx.map_arg(value, written.append)
    return written
