"""Overlay of torch._dynamo.guards: where a guard comes from is put into words once a place, not once a guard."""

from __future__ import annotations

from typing import Any

from torch_regions.overlay import replaces, stock


WIDTH = 60


@replaces
def _get_closure_var_hint(source: Any) -> str | None:
    # Few sources lead through a closure: a look at the name says which, without walking up.
    if source is None or "cell_contents" not in source.name:
        return None
    hint: str | None = stock("torch._dynamo.guards:_get_closure_var_hint")(source)
    return hint


@replaces
def get_verbose_code_part(code_part: str, guard: Any) -> str:
    stack = guard.user_stack if guard is not None else None
    words = stock("torch._dynamo.guards:get_verbose_code_part")
    if not stack:
        return words(code_part, guard)
    # All guards of a call that is stamped out have one stack.
    place = getattr(stack, "_region_place", None)
    if place is None:
        # What stock puts behind the guard's code, which it pads to this width.
        place = stack._region_place = words("", guard)[WIDTH:]
    return f"{code_part:<{WIDTH}}{place}"
