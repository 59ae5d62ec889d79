"""Overlay of torch._dynamo.trace_rules: a compiled function may itself mark a region."""

from __future__ import annotations

import functools
from typing import Any

import torch

from torch_regions.overlay import replaces, stock


@replaces
@functools.cache
def get_torch_obj_rule_map() -> dict[Any, Any]:
    from torch._dynamo.variables.functions import UserFunctionVariable

    rules = dict(stock("torch._dynamo.trace_rules:get_torch_obj_rule_map")())
    # Stock skips the file that defines this function. Our implementation can be traced.
    rules[torch.compiler.nested_compile_region] = UserFunctionVariable
    return rules
