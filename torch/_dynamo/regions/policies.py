"""Keys of checkpoint policies that always decide alike.

Note [A policy that only looks]
A checkpoint's ``context_fn`` makes the modes that say, for each operator, whether its result is saved.  AOTAutograd
runs ``context_fn``, and the policy inside it, once for each checkpoint in a graph.  If many checkpoints share one body,
both run for the first checkpoint only.  The result is the same if neither has an effect or a memory.  That is certain
for

- a list of operators;
- a policy whose instructions only load, compare, branch and return, and whose globals and cells hold operators, plain
  constants, containers of these, and modules of torch's: such a policy cannot run code of the program;
- a ``functools.partial`` of ``create_selective_checkpoint_contexts`` on one of these, or a function whose only call is
  a call of ``create_selective_checkpoint_contexts``.

Everything else has no key.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

import torch.fx
from torch._dynamo.regions.keys import Unkeyable, constant_key
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.fx.operator_facts import is_body
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts


CHECKPOINT = torch.ops.higher_order.tag_activation_checkpoint
# The entry of a checkpoint body's ``meta`` in which Dynamo keeps the checkpoint's context_fn.
CONTEXT_FN = "_checkpoint_context_fn"

_CONSTANTS = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device, CheckpointPolicy)
_OPERATORS = (OpOverload, OpOverloadPacket, HigherOrderOperator)
_LOOKING = frozenset(
    {
        *("RESUME", "NOP", "CACHE", "EXTENDED_ARG", "COPY_FREE_VARS", "PUSH_NULL", "NOT_TAKEN", "PRECALL"),
        *("LOAD_CONST", "LOAD_SMALL_INT", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_ATTR", "KW_NAMES"),
        *("POP_TOP", "DUP_TOP", "COPY", "SWAP", "ROT_TWO", "ROT_THREE", "BUILD_TUPLE", "BUILD_LIST", "BUILD_SET"),
        *("COMPARE_OP", "CONTAINS_OP", "IS_OP", "UNARY_NOT", "TO_BOOL", "RETURN_VALUE", "RETURN_CONST"),
    }
)
_LOOKING_BEGIN = ("LOAD_FAST", "STORE_FAST", "POP_JUMP", "JUMP_")


def policy_key(context_fn: Any) -> Hashable:
    """Key of what a checkpoint's ``context_fn`` decides; None without a ``context_fn``.

    Raises Unkeyable if the decision may change: Note [A policy that only looks].
    """
    if context_fn is None:
        return None
    if type(context_fn) is functools.partial and context_fn.func is create_selective_checkpoint_contexts:
        parts = (*context_fn.args, *context_fn.keywords.values())
        return "contexts", tuple(map(_part_key, parts)), tuple(context_fn.keywords)
    if type(context_fn) is types.FunctionType and _only_looks(context_fn, calls=1):
        return "function", context_fn
    raise Unkeyable("a context function that may have an effect, or a memory")


def is_its_code(context_fn: Any) -> bool:
    """Whether no function in ``context_fn`` has cells or defaults, so that guards on the code say what it does."""
    if type(context_fn) is functools.partial:
        return all(map(is_its_code, (*context_fn.args, *context_fn.keywords.values())))
    if type(context_fn) is types.FunctionType:
        return not (context_fn.__closure__ or context_fn.__defaults__ or context_fn.__kwdefaults__)
    return _is_still(context_fn)


def context_fns(nodes: Iterable[torch.fx.Node], modules: Mapping[str, Any]) -> Iterator[Any]:
    """The context functions of the checkpoints among ``nodes`` and inside their bodies.

    ``modules``: target of a ``get_attr`` node -> the subgraph that the node refers to.
    """
    for node in nodes:
        module = modules.get(str(node.target)) if is_body(node) else None
        if isinstance(module, torch.fx.GraphModule):
            if (context_fn := module.meta.get(CONTEXT_FN)) is not None:
                yield context_fn
            yield from context_fns(module.graph.nodes, modules)


def _part_key(part: Any) -> Hashable:
    if type(part) is types.FunctionType and _only_looks(part, calls=0):
        return "policy", part
    if not _is_still(part):
        raise Unkeyable("a policy that may have an effect, or a memory")
    return constant_key(part)


def _is_still(value: Any) -> bool:
    """Whether reading ``value`` runs none of the program's code."""
    kind = type(value)
    if any(kind is each for each in (list, tuple, set, frozenset)):
        return all(map(_is_still, value))
    if kind is dict:
        return all(map(_is_still, (*value, *value.values())))
    return any(kind is each for each in _CONSTANTS) or isinstance(value, _OPERATORS)


def _only_looks(function: types.FunctionType, calls: int) -> bool:
    """Whether ``function`` makes at most ``calls`` calls, has no effect, and depends on nothing that may change."""
    called = 0
    for instruction in dis.get_instructions(function.__code__):
        name = instruction.opname
        if name.startswith("CALL"):
            called += 1
        elif name not in _LOOKING and not name.startswith(_LOOKING_BEGIN):
            return False
    if called > calls:
        return False
    return all(_may_be_met(value, bool(called)) for value in _met_by(function))


def _met_by(function: types.FunctionType) -> Iterator[Any]:
    """The values of the globals, cells and defaults that ``function`` uses; an empty cell itself."""
    code, cells = function.__code__, function.__closure__ or ()
    for name in code.co_names:
        if name in function.__globals__:  # else an attribute's name, or a builtin's, which is not called
            yield function.__globals__[name]
    for cell in cells:
        try:
            yield cell.cell_contents
        except ValueError:
            yield cell  # still empty
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()


def _may_be_met(value: Any, called: bool) -> bool:
    if value is create_selective_checkpoint_contexts or value is CheckpointPolicy or _is_still(value):
        return True
    if called:
        return type(value) is types.FunctionType and _only_looks(value, calls=0)
    return type(value) is types.ModuleType and (value.__name__ + ".").startswith("torch.")
