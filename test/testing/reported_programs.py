"""Models for the tests of reports."""

import torch
import torch._dynamo


class Block(torch.nn.Module):
    def __init__(self, scale, dropout):
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)
        self.linear = torch.nn.Linear(8, 8)
        self.drop = torch.nn.AlphaDropout(dropout)  # no region may hold its draw
        self.scale = scale

    def forward(self, x):
        return x + self.drop(self.linear(self.norm(x)).relu() * self.scale)


class Layers(torch.nn.Module):
    """Layers of one class, with a scale each."""

    def __init__(self, scales, dropout=0.0):
        super().__init__()
        self.layers = torch.nn.ModuleList(Block(scale, dropout) for scale in scales)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def compiled_once(model, backend="eager", reset=True, x=None):
    """The result of the model's first call, compiled."""
    if reset:
        torch._dynamo.reset()
    return torch.compile(model, backend=backend)(torch.ones(2, 8) if x is None else x)
