"""Calls of regions: what Dynamo does when it meets a function marked by ``nested_compile_region``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch._dynamo.region_calls import RegionCall
from torch._dynamo.region_entries import call_region
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.higher_order_ops import TorchHigherOrderOperatorVariable
from torch._higher_order_ops.invoke_subgraph import NestedCompileRegionOptions, mark_compile_region


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase


def _function_of(fn: VariableTracker) -> Any:
    """The Python callable behind a tracker, as far as it is known; None when it is not."""
    try:
        return fn.get_function() if hasattr(fn, "get_function") else getattr(fn, "value", None)
    except Exception:  # a tracker without a function of its own: the mark has no options then
        return None


def _place(tx: InstructionTranslatorBase) -> str:
    """File and line of the call, in the user's code."""
    ours = mark_compile_region.__code__.co_filename
    frame: Any = tx
    while frame.parent is not None and frame.f_code.co_filename == ours:
        frame = frame.parent
    return f"{frame.f_code.co_filename}:{frame.lineno}"


class InvokeSubgraphHigherOrderVariable(TorchHigherOrderOperatorVariable):
    """The callee of a region's call; its first argument is the function that was marked."""

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
        )
        limit = getattr(mark, "__marked_compile_region_max_reuse_entries__", 8)
        return call_region(tx, call, fn, args[1:], kwargs, limit)


# The base class puts a handler around call_function that renames what a body raises. A region's
# errors and graph breaks are those of the function, and __torch_function__ is for the operators.
_call: Any = InvokeSubgraphHigherOrderVariable._call_function
InvokeSubgraphHigherOrderVariable.call_function = _call  # type: ignore[method-assign]
