"""What each kind of overlay file does: whole modules, new modules, extensions before and after their stock module."""

from __future__ import annotations

import textwrap

from testing.overlay_tools import STALE


def test_all_kinds(toy):
    result = toy.run(
        """
        import sys, torch
        assert "torch._dynamo" not in sys.modules
        from torch._dynamo import current_scope_id as scope, added_by_the_overlay
        root = __import__("torch_regions").status().root
        assert scope.__file__ == scope.__spec__.origin == root + "/torch/_dynamo/current_scope_id.py"
        assert added_by_the_overlay.VALUE == 3
        import torch._inductor.exc as exc, torch._guards as guards
        assert exc.__file__ == exc.__spec__.origin and "site-packages" in exc.__file__
        assert exc.OperatorIssue.operator_str("t", [], {}).startswith("ours ")
        assert exc.MissingOperatorWithoutDecomp.__mro__[1] is exc.OperatorIssue
        assert issubclass(exc.AddedError, exc.OperatorIssue)
        cache = guards.InvokeSubgraphCache()
        cache.get_autograd_key_entry("x"); guards.TracingContext.try_get(); guards.detect_fake_mode(None)
        assert {"get_autograd_key_entry", "detect_fake_mode"} <= set(guards.calls), guards.calls
        f = torch.compile(lambda x: (x + 1).relu(), backend="eager_noexcept")
        assert torch.equal(f(torch.ones(2)), torch.full((2,), 2.0))
        cond = sys.modules["torch._higher_order_ops.cond"]
        torch.cond(torch.tensor(True), lambda x: x + 1, lambda x: x - 1, (torch.ones(1),))
        assert cond.seen
        """
    )
    assert not result.warnings, result.err


def test_no_stale_binding(toy):
    """Modules, classes, dispatch tables, registries: none holds a replaced object."""
    result = toy.run(
        "import torch, torch._dynamo, torch._inductor.compile_fx\n"
        "import torch._dynamo.backends.debugging as debugging\n"
        + textwrap.dedent(STALE)
        + """
assert status().stale == (), status().stale
assert len(overlay.replaced()) == 6, overlay.replaced()
assert not list(holders()), list(holders())
import torch._dynamo.backends.registry as registry
assert registry._COMPILER_FNS["eager_noexcept"] is debugging.eager_noexcept
cond = sys.modules["torch._higher_order_ops.cond"]
assert cond.cond_op_dense in cond.cond_op.py_kernels.values()
stock = debugging.__file__.replace("backends/debugging", "current_scope_id")
assert not list(stock_code({stock}))
"""
    )
    assert not result.warnings, result.err


def test_a_finder_that_leaves_while_a_module_is_looked_for(toy):
    """As setuptools takes its own away, in another thread: the import system passes over the one behind it."""
    toy.run("""
        import sys
        import torch

        class Leaving:
            def find_spec(self, name, path=None, target=None):
                if name == "torch._inductor.exc":
                    sys.meta_path.remove(self)

        sys.meta_path.insert(0, leaving := Leaving())
        import torch._inductor.exc
        assert leaving not in sys.meta_path
        assert issubclass(torch._inductor.exc.AddedError, RuntimeError)
    """)


def test_late_activation_patches_what_is_loaded(toy):
    """With the plug-ins switched off and Dynamo imported, activate() still leaves nothing stale."""
    toy.run(
        "import torch, torch._dynamo, torch._inductor.compile_fx, torch_regions\n"
        "import torch._dynamo.backends.debugging as debugging\n"
        "import torch._dynamo.current_scope_id as scope\n"
        "stock = scope.__file__\n"
        "torch_regions.activate()\n"
        + textwrap.dedent(STALE)
        + """
assert status().active and status().stale == (), status()
assert not list(holders()), list(holders())
assert scope.__file__ != stock
import torch._dynamo.variables.base as base
assert base.current_scope_id is scope.current_scope_id
f = torch.compile(lambda x: (x + 1).relu(), backend="eager_noexcept")
assert torch.equal(f(torch.ones(2)), torch.full((2,), 2.0))
""",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )


def test_sources_and_pickle(toy):
    toy.run(
        """
        import inspect, pickle, traceback, torch, torch._dynamo
        import torch._inductor.exc as exc, torch._guards as guards, torch._dynamo.current_scope_id as scope
        from torch_regions.overlay import stock
        root = __import__("torch_regions").status().root
        assert "A class of ours" in inspect.getsource(exc.OperatorIssue)
        assert "Stock has none" in inspect.getsource(exc.AddedError)
        assert inspect.getsourcefile(exc.AddedError.Inner) == root + "/torch/_inductor/exc.py"
        assert inspect.getsource(guards.detect_fake_mode).startswith("@replaces")
        assert "_current_scope_id.append" in inspect.getsource(scope.enter_new_scope)
        assert "A class of ours" not in inspect.getsource(stock("torch._inductor.exc:OperatorIssue"))
        assert guards.TracingContext.get.__qualname__ == "TracingContext.get"
        error = exc.OperatorIssue("x")
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is exc.OperatorIssue and b"torch_regions" not in pickle.dumps(error)
        assert pickle.loads(pickle.dumps(guards.detect_fake_mode)) is guards.detect_fake_mode
        try:
            guards.detect_fake_mode(1, 2, 3, 4)
        except TypeError:
            pass
        try:
            exc.OperatorIssue.operator_str(None, 3, None)
        except TypeError:
            text = traceback.format_exc()
        assert root + "/torch/_inductor/exc.py" in text and 'return "ours "' in text
        """
    )


def test_a_file_that_does_not_fit_is_named(empty_toy):
    path = empty_toy.file(
        "_guards.py",
        """
        from torch_regions.overlay import replaces
        @replaces
        def detect_fake_mode(inputs=None):
            return "ours"
        def active_fake_mode():
            return "ours, unmarked"
        """,
    )
    empty_toy.build()
    code = """
        import torch, torch._dynamo, torch._guards as guards
        assert guards.detect_fake_mode(None) is None
        assert guards.active_fake_mode() is None
        assert not torch_regions.status().active if (torch_regions := __import__("torch_regions")) else 0
    """
    result = empty_toy.run(code)
    assert len(result.warnings) == 1 and "active_fake_mode" in result.warnings[0], result.err
    assert str(path) in result.warnings[0]
    strict = empty_toy.run("import torch, torch._dynamo", TORCH_REGIONS="strict", check=False)
    assert strict.code != 0 and "OverlayMismatch" in strict.err and "active_fake_mode" in strict.err


def test_wrong_kind_of_method(empty_toy):
    empty_toy.file(
        "_guards.py",
        """
        from torch_regions.overlay import replaces
        @replaces("TracingContext.get")
        def get():
            return None
        """,
    )
    result = empty_toy.build().run("import torch, torch._dynamo")
    assert len(result.warnings) == 1 and "staticmethod in stock" in result.warnings[0]


def test_a_failed_commit_is_undone(empty_toy):
    """The second of two loaded modules fails: the first is as it was."""
    empty_toy.file(
        "_guards.py",
        """
        from torch_regions.overlay import replaces
        @replaces
        def detect_fake_mode(inputs=None):
            return "ours"
        """,
    )
    empty_toy.file(
        "_higher_order_ops/cond.py",
        """
        VALUE = 1 / 0
        from torch_regions.overlay import replaces
        @replaces
        def cond_op_dense(pred, true_fn, false_fn, operands):
            pass
        """,
    )
    result = empty_toy.build().run(
        """
        import sys, torch, torch._guards, torch._subclasses.fake_tensor as f
        cond = sys.modules["torch._higher_order_ops.cond"]
        before = torch._guards.detect_fake_mode, cond.cond_op_dense
        import torch._dynamo, torch._dynamo.output_graph as o
        assert (torch._guards.detect_fake_mode, cond.cond_op_dense) == before
        assert torch._guards.detect_fake_mode(None) is None and not hasattr(cond, "VALUE")
        assert torch.compiler.config.cache_key_tag == ""
        from torch_regions import overlay
        assert not overlay.replaced()
        """
    )
    assert len(result.warnings) == 1 and "division by zero" in result.warnings[0]


def test_stock_without_the_overlay(toy):
    """TORCH_REGIONS=0: not even the new module is there."""
    result = toy.run(
        """
        import sys, torch, torch._dynamo, torch._inductor.exc as exc
        assert not hasattr(exc, "AddedError")
        loaded = {name for name in sys.modules if name.startswith("torch_regions")}
        assert loaded == {"torch_regions", "torch_regions._activate"}, loaded
        try:
            import torch._dynamo.added_by_the_overlay
        except ModuleNotFoundError:
            print("gone")
        """,
        TORCH_REGIONS="0",
    )
    assert result.out == "gone\n"
