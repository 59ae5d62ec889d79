"""Overlay of torch._inductor.codegen.wrapper: calls of a region, early kernels, memory donated to a body.

A call does not repeat the checks of its caller. Note [An operand that dies in every call] in regions/donation.py says
who frees and who reuses memory that a body may overwrite.
"""

from __future__ import annotations

from typing import Any

from torch._inductor.codegen.wrapper import FreeIfNotReusedLine, FreeLine
from torch._inductor.ir import DonatedBuffer
from torch._inductor.regions.donation import give_away
from torch._inductor.regions.early_kernels import compile_early
from torch._inductor.regions.kernel_units import flush
from torch._inductor.virtualized import V

from torch_regions.overlay import replaces, stock


@replaces("PythonWrapperCodegen.codegen_input_size_asserts")
def codegen_input_size_asserts(self: Any) -> None:
    # An operand of a call is an input of the graph around it, which checks it before its first use, or a buffer made
    # with the strides that the body was compiled for. An assert in the body would be repeated in each call.
    if not getattr(V.graph, "is_body_of_region", False):
        stock("torch._inductor.codegen.wrapper:PythonWrapperCodegen.codegen_input_size_asserts")(self)


@replaces("PythonWrapperCodegen.define_kernel")
def define_kernel(
    self: Any,
    kernel_name: str,
    kernel_body: str,
    metadata: Any = None,
    gpu: bool = True,
    cpp_definition: Any = None,
) -> None:
    if not gpu:
        compile_early(kernel_name, kernel_body)
    stock("torch._inductor.codegen.wrapper:PythonWrapperCodegen.define_kernel")(
        self, kernel_name, kernel_body, metadata, gpu, cpp_definition
    )


def _is_donated_to_body(name: str) -> bool:
    # An input may be an object, which is not in ``graph_inputs_original``.
    originals = V.graph.graph_inputs_original
    return getattr(V.graph, "is_body_of_region", False) and isinstance(originals.get(name), DonatedBuffer)


@replaces("PythonWrapperCodegen.codegen_invoke_subgraph")
def codegen_invoke_subgraph(self: Any, invoke_subgraph: Any) -> None:
    give_away(invoke_subgraph)
    stock("torch._inductor.codegen.wrapper:PythonWrapperCodegen.codegen_invoke_subgraph")(self, invoke_subgraph)
    # The body's kernels are known, and most of the program is still to be written.
    flush()


@replaces("PythonWrapperCodegen.codegen_free")
def codegen_free(self: Any, buffer: Any) -> None:
    name = buffer.get_name()
    if name in getattr(V.graph, "given_away", ()):
        # The memory belongs to the body, which may have returned it.
        self.freed.add(name)
        self.writeline(FreeLine(self, buffer))
    elif _is_donated_to_body(name) and self.can_reuse(buffer):
        self.freed.add(name)
        self.writeline(FreeIfNotReusedLine(self, buffer))
    else:
        stock("torch._inductor.codegen.wrapper:PythonWrapperCodegen.codegen_free")(self, buffer)
