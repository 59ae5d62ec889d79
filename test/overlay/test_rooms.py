"""Which file may import which, and how long one may be: see the rooms in ARCHITECTURE.md."""

import ast
from pathlib import Path

import networkx
import pytest
import torch
from testing.overlay_tools import REPO


MAX_LINES, MAX_LINES_OF_A_FUNCTION = 400, 60
REGIONS = "torch._dynamo.regions"
# What a replacement in one of Dynamo's modules may import of the rooms behind it.
HOOKS_IMPORT = {"trace.events", "trace.call", "trace.automatic"}


def _modules():
    files = [*(REPO / "torch").rglob("*.py"), *(REPO / "torch_regions").rglob("*.py")]
    return {".".join(f.relative_to(REPO).with_suffix("").parts).removesuffix(".__init__"): f for f in files}


MODULES = _modules()


def _imported(tree):
    """Names that a file imports from, wherever it does, and the names that it imports from there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "the overlay runs in stock's modules: imports are absolute"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _arrows():
    found = networkx.DiGraph()
    found.add_nodes_from(MODULES)
    for name, file in MODULES.items():
        ours = {other for other in _imported(ast.parse(file.read_text())) if other in MODULES and other != name}
        found.add_edges_from((name, other) for other in ours)
    return found


ARROWS = _arrows()


def _room(name):
    """``trace`` for a module in that room of Dynamo's regions, and so on; None outside of the rooms."""
    parts = name.removeprefix(f"{REGIONS}.").split(".")
    return parts[0] if name.startswith(f"{REGIONS}.") and len(parts) > 1 else None


def _is_stocks(name):
    """Whether the installed torch has a module of that name."""
    path = Path(torch.__file__).parent.joinpath(*name.split(".")[1:])
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def test_no_circle_of_imports():
    circles = [sorted(c) for c in networkx.strongly_connected_components(ARROWS) if len(c) > 1]
    assert not circles


def test_the_rooms_do_not_import_each_other():
    rooms = {(_room(a), _room(b)) for a, b in ARROWS.edges if _room(a) and _room(b)}
    assert rooms == {("trace", "trace"), ("outline", "outline")}


def test_what_both_rooms_use_imports_neither():
    shared = [name for name in MODULES if name.startswith(f"{REGIONS}.") and _room(name) is None]
    assert not [(a, b) for a in shared for b in ARROWS.successors(a) if _room(b)]


def test_hooks_import_the_doors_of_the_rooms_only():
    hooks = [name for name in MODULES if name.startswith("torch._dynamo.") and _is_stocks(name)]
    assert len(hooks) > 10
    behind = {
        (hook, b)
        for hook in hooks
        for b in ARROWS.successors(hook)
        if _room(b) and b.removeprefix(f"{REGIONS}.") not in HOOKS_IMPORT
    }
    assert {_room(b) for _, b in behind} <= {"outline"}


def test_dynamo_and_the_backend_do_not_import_inductors_rooms():
    outside = [name for name in MODULES if not name.startswith("torch._inductor")]
    assert not [(a, b) for a in outside for b in ARROWS.successors(a) if b.startswith("torch._inductor.regions")]


def test_the_loader_imports_nothing_of_the_overlay():
    loader = [name for name in MODULES if name.startswith("torch_regions")]
    assert not [(a, b) for a in loader for b in ARROWS.successors(a) if b.startswith("torch.")]


@pytest.mark.parametrize("name", MODULES)
def test_files_and_functions_are_short(name):
    text = MODULES[name].read_text()
    assert text.count("\n") <= MAX_LINES
    functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    assert not [f.name for f in functions if f.end_lineno - f.lineno + 1 > MAX_LINES_OF_A_FUNCTION]


# Two names for one object that Dynamo, fx and Inductor have: the frame's graph, a proxy's node, a number's expression.
ONE_OBJECT = {("tx", "output"), ("_tx", "output"), ("V", "graph"), ("proxy", "node"), ("node", "expr")}


def _reached(text):
    """What the code reaches through objects, as lists of names, each of ``ONE_OBJECT`` as one."""
    tree = ast.parse(text)
    imported = {
        (a.asname or a.name).partition(".")[0] for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names
    }
    for node in ast.walk(tree):
        names = []
        while isinstance(node, ast.Attribute):
            names.insert(0, node.attr)
            node = node.value
        if names and isinstance(node, ast.Name) and node.id not in imported:
            names.insert(0, node.id)
            yield [name for i, name in enumerate(names) if not i or (names[i - 1], name) not in ONE_OBJECT]


@pytest.mark.parametrize("name", MODULES)
def test_what_a_file_uses_is_at_hand(name):
    """An object, what it holds, what that holds, and a name of it: what is further away is given, or given a name."""
    assert not [".".join(names) for names in _reached(MODULES[name].read_text()) if len(names) > 4]


def test_a_service_that_is_far_away_is_seen():
    reached = list(_reached("import torch\ntorch.a.b.c.d.e()\nself.tx.output.a.b.c()\nself.calls.cache.entries.find()"))
    assert [names for names in reached if len(names) > 4] == [
        ["self", "tx", "a", "b", "c"],
        ["self", "calls", "cache", "entries", "find"],
    ]


def test_a_circle_is_seen():
    """The test can fail: one arrow back, and the circle is found."""
    back = ARROWS.copy()
    back.add_edge(f"{REGIONS}.outcomes", f"{REGIONS}.trace.call")
    assert any(len(c) > 1 for c in networkx.strongly_connected_components(back))


def _names_itself(function):
    return any(isinstance(node, ast.Name) and node.id == function.name for node in ast.walk(function))


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("torch.")])
def test_no_function_inside_of_another_names_itself(name):
    """Such a function holds itself, and so all that it uses of its surroundings, until Python's next collection."""
    functions = [node for node in ast.walk(ast.parse(MODULES[name].read_text())) if isinstance(node, ast.FunctionDef)]
    inside = {id(node): node for outer in functions for node in ast.walk(outer) if node is not outer}
    assert [node.name for node in functions if id(node) in inside and _names_itself(node)] == []
