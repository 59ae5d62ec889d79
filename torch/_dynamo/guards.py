"""Overlay of torch._dynamo.guards: what is asked for each guard of each module is asked in fewer steps.

Where a guard comes from is put into words once a place, not once a guard; and the way to an attribute of a module is
the short one where it is in the module's ``__dict__``.
"""

from __future__ import annotations

import ast
from typing import Any

from torch._C._dynamo.guards import DictGuardManager
from torch._dynamo.guards import GuardManagerType
from torch._dynamo.source import AttrSource

from torch_regions.overlay import replaces, stock


WIDTH = 60


@replaces
def _get_closure_var_hint(source: Any) -> str | None:
    # Few sources lead through a closure: a look at the name says which, without walking up.
    if source is None or "cell_contents" not in source.name:
        return None
    hint: str | None = stock("torch._dynamo.guards:_get_closure_var_hint")(source)
    return hint


def _place(guard: Any) -> str | None:
    """What stock puts behind a guard's code, which it pads to ``WIDTH``; None where it has no user's stack to show."""
    stack = guard.user_stack if guard is not None else None
    if not stack:
        return None
    # All guards of a call that is stamped out have one stack.
    place: str | None = getattr(stack, "_region_place", None)
    if place is None:
        place = stack._region_place = stock("torch._dynamo.guards:get_verbose_code_part")("", guard)[WIDTH:]
    return place


@replaces
def get_verbose_code_part(code_part: str, guard: Any) -> str:
    place = _place(guard)
    if place is None:
        return stock("torch._dynamo.guards:get_verbose_code_part")(code_part, guard)  # type: ignore[no-any-return]
    return f"{code_part:<{WIDTH}}{place}"


@replaces
def get_verbose_code_parts(code_parts: str | list[str], guard: Any, recompile_hint: str | None = None) -> list[str]:
    place = _place(guard)
    if place is None or _get_closure_var_hint(guard.originating_source) is not None:
        words = stock("torch._dynamo.guards:get_verbose_code_parts")
        return words(code_parts, guard, recompile_hint)  # type: ignore[no-any-return]
    hint = f" (HINT: {recompile_hint})" if recompile_hint else ""
    parts = code_parts if isinstance(code_parts, list) else [code_parts]
    return [f"{part:<{WIDTH}}{place}{hint}" for part in parts]


@replaces
def _ast_unparse(node: Any) -> str:
    # Guards that two names are of one object name the way to it, which stock words anew for each step of the way.
    return _way(node) or stock("torch._dynamo.guards:_ast_unparse")(node)  # type: ignore[no-any-return]


def _way(node: ast.AST) -> str | None:
    """A name, and attributes and elements behind it, as ``ast.unparse`` words them; None for anything else."""
    if type(node) is ast.Name:
        return node.id
    found: str | None = getattr(node, "_region_way", None)  # each step of a way is asked for, the last one first
    if found is None and type(node) is ast.Attribute:
        base = _way(node.value)
        found = node._region_way = base and f"{base}.{node.attr}"  # type: ignore[attr-defined]
    elif found is None and type(node) is ast.Subscript and _is_plain(node.slice):
        base = _way(node.value)
        found = node._region_way = base and f"{base}[{node.slice.value!r}]"  # type: ignore[attr-defined]
    return found


def _is_plain(index: ast.expr) -> bool:
    # A string's prefix is lost in its value.
    return type(index) is ast.Constant and type(index.value) in (int, str) and index.kind is None


@replaces("GuardBuilder.getattr_on_nn_module")
def getattr_on_nn_module(
    self: Any,
    source: AttrSource,
    base_guard_manager: Any,
    base_example_value: Any,
    example_value: Any,
    base_source_name: str,
    source_name: str,
    guard_manager_enum: Any,
) -> Any:
    own = base_example_value.__dict__
    if source.member in own:
        # What comes first in __dict__ is found first, whatever the class has by that name.
        within = base_guard_manager.get_generic_dict_manager(
            source=f"{base_source_name}.__dict__",
            example_value=self._get_generic_dict_manager_example_value(own),
            guard_manager_enum=GuardManagerType.GUARD_MANAGER,
        )
        if not isinstance(within, DictGuardManager):
            return within.dict_getitem_manager(
                key=source.member,
                source=source_name,
                example_value=example_value,
                guard_manager_enum=guard_manager_enum,
            )
    rest = (example_value, base_source_name, source_name, guard_manager_enum)
    by_search = stock("torch._dynamo.guards:GuardBuilder.getattr_on_nn_module")
    return by_search(self, source, base_guard_manager, base_example_value, *rest)
