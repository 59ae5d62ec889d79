"""Overlay of torch._inductor.codegen.wrapper: a call of a region does not check again what its caller has checked."""

from __future__ import annotations

from typing import Any

from torch._inductor.virtualized import V

from torch_regions.overlay import replaces, stock


@replaces("PythonWrapperCodegen.codegen_input_size_asserts")
def codegen_input_size_asserts(self: Any) -> None:
    # An operand of a call is an input of the graph around it, which is checked there before its first use, or a buffer
    # that was made with the strides that the body was compiled for. Checked in the body, it would be so in each call.
    if not getattr(V.graph, "is_body_of_region", False):
        stock("torch._inductor.codegen.wrapper:PythonWrapperCodegen.codegen_input_size_asserts")(self)
