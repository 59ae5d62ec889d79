"""Overlay of torch._inductor.fx_passes.post_grad: a body whose graph a pass has changed runs the changed graph."""

from __future__ import annotations

from torch.fx import GraphModule

from torch_regions.overlay import replaces, stock


@replaces
def view_to_reshape(gm: GraphModule) -> None:
    stock("torch._inductor.fx_passes.post_grad:view_to_reshape")(gm)
    # The graph around is interpreted, but what is not known of a call is found by running the body's code, on operands
    # with the strides that Inductor gave them. Those may take a copy where the traced program needed a view only.
    for body in gm.modules():
        if isinstance(body, GraphModule) and body is not gm:
            body.recompile()
