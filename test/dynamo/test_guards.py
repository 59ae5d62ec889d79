"""The shorter ways in guards and names give what stock's give: same guards, same words, same names."""

import ast
import re

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo import guards
from torch._dynamo.eval_frame import _debug_get_cache_entry_list

from torch_regions.overlay import stock


SHORTER = [
    "_ast_unparse",
    "_get_closure_var_hint",
    "get_verbose_code_part",
    "get_verbose_code_parts",
    "GuardBuilder.getattr_on_nn_module",
]


class Config:
    def __init__(self):
        self.scale = 2.0


class Shadowing(nn.Module):
    """Has attributes of each kind that a module can have, and some that are in its way."""

    weight = "of the class"

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.parts = nn.ModuleList([nn.Linear(4, 4), nn.LayerNorm(4)])
        self.named = nn.ModuleDict({"a-b": nn.Linear(4, 4), "3": nn.BatchNorm1d(4)})
        self.lists = nn.ParameterList([torch.ones(4), torch.ones(4)])
        self.own = nn.Parameter(torch.ones(4))
        self.plain = {"b": 1, "a": 2}
        self.register_buffer("kept", torch.ones(4))

    @property
    def read(self):
        return self.config.scale

    def forward(self, x):
        for part in self.parts:
            x = part(x)
        for key, value in self.plain.items():
            x = x + value * len(key)
        x = self.named["a-b"](x) * self.read + self.named["3"](x) * self.config.scale
        return x + self.lists[0] + self.lists[1] * self.own + self.kept + len(self.weight)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        config = Config()
        self.layers = nn.ModuleList([Shadowing(config) for _ in range(3)])
        self.alias = self.layers[1]

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.alias(x)


def _guards_of(model, x):
    torch._dynamo.reset()
    torch.compile(model, backend="eager")(x)
    (entry,) = _debug_get_cache_entry_list(type(model).forward.__code__)
    return re.sub(r"__builtins_dict___\d+|_\d+_c\d+", "", str(entry.guard_manager))


@pytest.mark.parametrize("flag", [False, True])
def test_guards_are_those_of_stock_word_by_word(monkeypatch, flag):
    model, x = Model().eval(), torch.randn(2, 4)
    seen = []
    with torch._dynamo.config.patch(use_graph_deduplication=flag):
        seen.append(_guards_of(model, x))
        for name in SHORTER:
            owner, _, attribute = name.rpartition(".")
            of_stock = stock(f"torch._dynamo.guards:{name}")
            monkeypatch.setattr(getattr(guards, owner) if owner else guards, attribute, of_stock)
        seen.append(_guards_of(model, x))
    assert seen[0].count("TENSOR_MATCH") > 20 and "HINT" in seen[0] and " is " in seen[0]
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    "text",
    [
        "L['self'].layers[0].config",
        "L['a'][\"b'c\"]['d\\ne'][-1][True][1.5]",
        "G['x'](L['y'].z[0])['k'].w",
        "a.b + c.d[0] is e['f'].g",
        "L['x'][0][1:2][(3, 4)]",
    ],
)
def test_a_way_is_worded_as_python_words_it(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.expr):
            assert guards._ast_unparse(node) == ast.unparse(node).replace("\n", "")


def test_names_of_parameters_in_the_graph_are_those_without_the_flag():
    names = []

    def backend(graph, inputs):
        names.append(dict(graph.meta["dynamo_flat_name_to_original_fqn"]))
        return graph

    for flag in (False, True):
        with torch._dynamo.config.patch(use_graph_deduplication=flag):
            for call in (Model(), lambda model, x: model(x) + 1):
                torch._dynamo.reset()
                given = (torch.randn(2, 4),) if isinstance(call, Model) else (Model(), torch.randn(2, 4))
                torch.compile(call, backend=backend)(*given)
    assert len(names[0]) > 20 and "alias.own" not in names[0].values()
    assert names[:2] == names[2:]
