"""Traces calls of functions that ``nested_compile_region`` has marked, as region calls."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from torch._dynamo.exc import ObservedException, Unsupported
from torch._dynamo.regions.frame import FRAME, RegionCall, defined_at
from torch._dynamo.regions.keys import Same
from torch._dynamo.regions.release import bound_to
from torch._dynamo.regions.source_names import name_of_source
from torch._dynamo.regions.stack_room import call_with_room
from torch._dynamo.regions.switch import regions_found
from torch._dynamo.regions.trace.call import call_region
from torch._dynamo.source import AttrSource
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.functions import UserFunctionVariable, UserMethodVariable
from torch._dynamo.variables.higher_order_ops import TorchHigherOrderOperatorVariable
from torch._higher_order_ops.invoke_subgraph import NestedCompileRegionOptions, mark_compile_region


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase


log = logging.getLogger(__name__)


def _function_of(fn: VariableTracker) -> Any:
    """The Python callable behind a tracker; None if unknown."""
    try:
        return fn.get_function() if hasattr(fn, "get_function") else getattr(fn, "value", None)
    except Exception:  # a tracker without a function: then the mark has no options
        return None


def _path_of(fn: VariableTracker) -> str:
    """The name of the source of the object whose method ``fn`` is, where it is one and the source is known."""
    return name_of_source(bound_to(fn).source) if isinstance(fn, UserMethodVariable) else ""


def _place(tx: InstructionTranslatorBase) -> str:
    """File and line of the call in the user's code."""
    ours = mark_compile_region.__code__.co_filename
    frame: Any = tx
    while frame.parent is not None and frame.f_code.co_filename == ours:
        frame = frame.parent
    return f"{frame.f_code.co_filename}:{frame.lineno}"


def _key(
    tx: InstructionTranslatorBase, mark: Any, args: list[VariableTracker], kwargs: dict[str, VariableTracker]
) -> tuple[Same, int] | None:
    """The mark's reuse_hash_fn and its result on the arguments; None without one, or if that is no constant integer.

    The function is traced with its guards: its reads decide which body is called, so a change of these must recompile.
    """
    hash_fn = getattr(mark, "__marked_compile_region_reuse_hash_fn__", None)
    if hash_fn is None:
        return None
    source = tx.funcvar.source  # type: ignore[attr-defined]
    if source is not None:
        source = AttrSource(source, "__marked_compile_region_reuse_hash_fn__")
    try:
        found = UserFunctionVariable(hash_fn, source=source).call_function(tx, args, kwargs).realize()
        if type(found) is ConstantVariable and type(found.value) is int:
            return Same(hash_fn), found.value  # the numbers of another mark's function mean something else
        why = f"it returned {found}"
    except (ObservedException, Unsupported, AssertionError) as e:
        why = f"{type(e).__name__}: {str(e).partition(chr(10))[0]}"
    log.warning(
        "reuse_hash_fn %r is left out: it has to be a Python function that Dynamo traces without a graph break and that"
        " returns a constant integer, but %s. What tracing reads decides instead.",
        hash_fn,
        why,
    )
    return None


class InvokeSubgraphHigherOrderVariable(TorchHigherOrderOperatorVariable):
    """The callee of a region call, whose first argument is the marked function."""

    _HOP_NAME = "torch.ops.higher_order.invoke_subgraph"

    def _call_function(
        self,
        tx: InstructionTranslatorBase,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        fn = args[0].realize()
        function = _function_of(fn)
        mark = _function_of(tx.funcvar) if hasattr(tx, "funcvar") else None
        options = getattr(mark, "__marked_compile_region_config__", None)
        call = RegionCall(
            function=getattr(function, "__qualname__", type(function).__qualname__),
            caller=_place(tx),
            options=options if isinstance(options, NestedCompileRegionOptions) else None,
            key=_key(tx, mark, args[1:], kwargs),
            defined=defined_at(function),
            path=_path_of(fn),
        )
        # See Note [Off means off]
        regions_found()
        limit = getattr(mark, "__marked_compile_region_max_reuse_entries__", 8)
        if FRAME.of(tx.output).open is not None:
            return call_region(tx, call, fn, args[1:], kwargs, limit)
        return call_with_room(call_region, tx, call, fn, args[1:], kwargs, limit)


# The base class wraps call_function in a handler that renames what a body raises. A region's errors and graph breaks
# are those of the function, and __torch_function__ is for the operators.
_call: Any = InvokeSubgraphHigherOrderVariable._call_function
InvokeSubgraphHigherOrderVariable.call_function = _call  # type: ignore[method-assign]
