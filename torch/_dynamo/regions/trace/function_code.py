"""What decides how Dynamo traces a Python function, besides what the function reads."""

from __future__ import annotations

import types
from collections.abc import Hashable

import torch


# Names of Dynamo's sets of functions, by id, of which the program has told it something.
_TOLD = ("_allowed", "_disallowed", "_nonstrict_trace")


def code_of(function: object) -> Hashable:
    """The code and globals of a plain function, and what the program has told Dynamo of it; anything else itself."""
    if type(function) is not types.FunctionType:
        return id(function)
    rules = torch._dynamo.trace_rules  # which imports, by way of others, this module
    told = tuple(name for name in _TOLD if id(function) in getattr(rules, f"{name}_callable_ids"))
    return id(function.__code__), id(function.__globals__), told
