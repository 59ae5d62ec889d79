"""Two programs that mean the same have one key in AOTAutogradCache, whatever is called what."""

from __future__ import annotations

import pytest
import torch
from testing.cache_keys import keys_of, keys_of_text


INPUTS = """
def inputs():
    return torch.ones(4, 8), torch.ones(8, 8, requires_grad=True)
"""
BASE = """
def f(x, w):
    h = (x @ w).relu()
    return h.sum(0), h * 2.0
"""

# name -> (a program, another one that means the same)
PAIRS: dict[str, tuple[str, str]] = {
    "argument": (BASE, "def f(a, b):\n    h = (a @ b).relu()\n    return h.sum(0), h * 2.0"),
    "intermediate": (BASE, BASE.replace("h", "result")),
    "lambda": (BASE, "f = lambda x, w: (lambda h: (h.sum(0), h * 2.0))((x @ w).relu())"),
    "lines": (BASE, "\n\n\n# another place\n" + BASE),
    "inner_function": (
        BASE,
        "def g(q):\n    return q.relu()\ndef f(x, w):\n    h = g(x @ w)\n    return h.sum(0), h * 2.0",
    ),
    "dead_code": (BASE, BASE.replace("    return", "    unused = x * 3\n    return")),
    "unrolled_loop": (
        "def f(x, w):\n    for _ in range(3):\n        x = x @ w\n    return x",
        "def f(x, w):\n    return ((x @ w) @ w) @ w",
    ),
    "python_number": (BASE, BASE.replace("2.0", "(1.0 + 1.0)")),
    "branch": (BASE, BASE.replace("    return", "    if x.shape[0] == 4:\n        pass\n    return")),
    "global": (BASE, "K = 2.0\n" + BASE.replace("2.0", "K")),
    "closure": (
        BASE,
        "def make(k):\n    def g(x, w):\n        h = (x @ w).relu()\n        return h.sum(0), h * k\n    return g\nf = make(2.0)",
    ),
    "default": (BASE, BASE.replace("(x, w)", "(x, w, k=2.0)").replace("h * 2.0", "h * k")),
    "keyword_order": (
        "def f(x, w):\n    return torch.sum(x @ w, dim=0, keepdim=True)",
        "def f(x, w):\n    return torch.sum(x @ w, keepdim=True, dim=0)",
    ),
    "list_or_starred": (
        BASE,
        BASE.replace("return h.sum(0), h * 2.0", "outs = [h.sum(0), h * 2.0]\n    return tuple(outs)"),
    ),
    "order_of_independent": (
        "def f(x, w):\n    y = x @ w\n    a = x.sin()\n    b = w.cos()\n    return y + a @ b",
        "def f(x, w):\n    y = x @ w\n    b = w.cos()\n    a = x.sin()\n    return y + a @ b",
    ),
    "order_of_three": (
        "def f(x, w):\n    y = x @ w\n    a = x.sin()\n    b = w.cos()\n    c = w.exp()\n    return a @ b @ c + y",
        "def f(x, w):\n    y = x @ w\n    c = w.exp()\n    b = w.cos()\n    a = x.sin()\n    return a @ b @ c + y",
    ),
    "order_between_writes": (
        "def f(x, w):\n    x.add_(1)\n    a = x.sin()\n    b = w.cos()\n    x.add_(2)\n    return a @ b",
        "def f(x, w):\n    x.add_(1)\n    b = w.cos()\n    a = x.sin()\n    x.add_(2)\n    return a @ b",
    ),
    "order_of_outputs_used": (
        "def f(x, w):\n    a = x * 2\n    b = x * 3\n    return b @ w, a @ w",
        "def f(x, w):\n    b = x * 3\n    a = x * 2\n    left = b @ w\n    return left, a @ w",
    ),
    "functional_module": (
        "import torch.nn.functional as nnf\ndef f(x, w):\n    return nnf.gelu(x @ w)",
        "def f(x, w):\n    return F.gelu(x @ w)",
    ),
    "annotated": (BASE, BASE.replace("(x, w)", "(x: torch.Tensor, w: 'a weight')")),
    "comprehension": (
        "def f(x, w):\n    return [x * k for k in (1, 2, 3)]",
        "def f(x, w):\n    a = x * 1\n    b = x * 2\n    c = x * 3\n    return [a, b, c]",
    ),
    "try": (
        BASE,
        BASE.replace("    h = (x @ w).relu()", "    try:\n        h = (x @ w).relu()\n    finally:\n        pass"),
    ),
    "checkpoint": (
        "from torch.utils.checkpoint import checkpoint as c\ndef body(x, w):\n    return (x @ w).sin()\n"
        "def f(x, w):\n    return c(body, x, w, use_reentrant=False)",
        "from torch.utils.checkpoint import checkpoint as d\ndef other(q, r):\n    return (q @ r).sin()\n"
        "def f(x, w):\n    return d(other, x, w, use_reentrant=False)",
    ),
    "annotation_by_other_name": (
        "import torch.fx.traceback as t\ndef f(x, w):\n    with t.annotate({'stage': 1}):\n        return x @ w",
        "from torch.fx.traceback import annotate\ndef f(a, b):\n    with annotate({'stage': 1}):\n        return a @ b",
    ),
    "grad_mode": (
        "def f(x, w):\n    with torch.no_grad():\n        y = x @ w\n    return y + w.sum()",
        "def f(p, q):\n    torch._C._set_grad_enabled(False)\n    z = p @ q\n    torch._C._set_grad_enabled(True)\n    return z + q.sum()",
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_pair(name):
    one, other = (keys_of_text(text + INPUTS) for text in PAIRS[name])
    assert one == other
    assert all(key.startswith("a") and " " not in key for key in one), one


@pytest.mark.parametrize(
    "name", ["argument", "intermediate", "lambda", "inner_function", "order_of_independent", "checkpoint"]
)
def test_pair_of_symbolic_sizes(name):
    """Symbols are named after arguments; the sizes they stand for are not."""
    one, other = (keys_of_text(text + INPUTS, dynamic=True) for text in PAIRS[name])
    assert one == other


class Block(torch.nn.Module):
    def __init__(self, index: int = 0) -> None:
        super().__init__()
        self.index = index
        self.first = torch.nn.Linear(8, 8)
        self.norm = torch.nn.LayerNorm(8)
        self.second = torch.nn.Linear(8, 8)

    def forward(self, x):
        self.index + 1
        h = torch.nn.functional.gelu(self.first(self.norm(x)))
        return x + self.second(h) * 2.0


class Renamed(torch.nn.Module):
    """A block with other names for the same things."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(8, 8)
        self.before = torch.nn.LayerNorm(8)
        self.down = torch.nn.Linear(8, 8)

    def forward(self, value):
        hidden = self.before(value)
        hidden = torch.nn.functional.gelu(self.up(hidden))
        return value + self.down(hidden) * 2.0


class Swapped(Block):
    """A block whose modules are registered in another order."""

    def __init__(self) -> None:
        super().__init__()
        first = self.first
        del self.first
        self.first = first


class Holder(torch.nn.Module):
    def __init__(self, path: str, block: torch.nn.Module) -> None:
        super().__init__()
        self.path = path
        holder: torch.nn.Module = self
        for part in path.split(".")[:-1]:
            holder.add_module(part, torch.nn.Module())
            holder = holder.get_submodule(part)
        holder.add_module(path.rpartition(".")[2], block)

    def forward(self, x):
        return self.get_submodule(self.path)(x)


X = torch.ones(4, 8)


def reference() -> list[str]:
    return keys_of(Block(), X)


@pytest.mark.parametrize("path", ["block", "layer", "a.b", "layers.0", "layers.1", "decoder.layers.11.block"])
def test_module_path(path):
    assert keys_of(Holder(path, Block()), X) == reference()


@pytest.mark.parametrize("index", range(1, 6))
def test_layer_index(index):
    assert keys_of(Block(index), X) == reference()


@pytest.mark.parametrize("kind", [Renamed, Swapped])
def test_other_class(kind):
    assert keys_of(kind(), X) == reference()


def test_counters_after_other_compiles():
    before = reference()
    for n in range(5):
        keys_of(lambda x, n=n: (x * n).sin() + torch.zeros(3), torch.ones(3))
    torch._dynamo.reset()
    assert keys_of(Block(), X) == before


def test_same_tensors_of_other_values():
    assert keys_of(Block(), torch.full((4, 8), 3.0)) == reference()


@pytest.mark.parametrize("inline", [True, False])
def test_parameters_that_stay_in_the_graph_module(inline):
    with torch._dynamo.config.patch(inline_inbuilt_nn_modules=inline):
        assert keys_of(Holder("a", Block()), X) == keys_of(Holder("b.c", Renamed()), X)
