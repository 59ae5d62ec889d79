"""Overlay of torch._inductor.fx_passes.post_grad: regenerates the code of bodies whose graph a pass has changed."""

from __future__ import annotations

from torch.fx import GraphModule

from torch_regions.overlay import replaces, stock


@replaces
def view_to_reshape(gm: GraphModule) -> None:
    stock("torch._inductor.fx_passes.post_grad:view_to_reshape")(gm)
    # Inductor interprets the outer graph, but finds unknown metadata of a call by running the body's code, on operands
    # with the strides that Inductor chose. With these, an operator may need a copy where tracing needed a view.
    for body in gm.modules():
        if isinstance(body, GraphModule) and body is not gm:
            body.recompile()
