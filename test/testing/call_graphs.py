"""Graphs with calls of a body, built by hand."""

import torch


def graph_with_a_call():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    body = graph.get_attr("body")
    call = graph.call_function(torch.ops.higher_order.invoke_subgraph, (body, "body", x))
    graph.output(call)
    inner = torch.fx.Graph()
    inner.output((inner.placeholder("x"),))
    return torch.fx.GraphModule({"body": torch.fx.GraphModule({}, inner)}, graph)
