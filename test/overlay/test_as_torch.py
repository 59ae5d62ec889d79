"""Dynamo treats the overlay's files as torch's own."""

from __future__ import annotations

from testing.overlay_tools import run_code


def test_files_are_judged_as_the_stock_files_they_stand_for(toy):
    toy.run(
        """
        import torch, torch_regions, os
        from torch._dynamo import trace_rules, guards
        from torch.fx.experimental import symbolic_shapes
        root, stock = torch_regions.status().root + "/torch/", torch.__path__[0] + "/"
        names = ["_dynamo/current_scope_id.py", "_inductor/exc.py", "_guards.py", "_higher_order_ops/cond.py"]
        for name in names:
            assert os.path.exists(root + name)
            for inlined in (False, True):
                ours, theirs = (trace_rules.check_file(base + name, inlined) for base in (root, stock))
                assert ours == theirs, (ours, theirs)
            assert trace_rules.is_torch(root + name) == trace_rules.is_torch(stock + name)
            for files in (guards.uninteresting_files(), symbolic_shapes.uninteresting_files()):
                assert (root + name in files) == (stock + name in files), name
        assert root + "_higher_order_ops/cond.py" in symbolic_shapes.uninteresting_files()
        assert trace_rules.check_file(torch_regions.__file__).skipped
        assert not trace_rules.check_file(root + "not_ours.py").skipped
        """
    )


def test_overlay_frames_are_never_compiled(toy):
    """A function of an overlay file, called by the user's code, is skipped as stock's would be."""
    toy.run(
        """
        import torch, torch._inductor.exc as exc, torch._dynamo.current_scope_id as scope
        seen = []
        def backend(gm, inputs):
            seen.append(gm)
            return gm.forward
        torch.compile(scope.current_scope_id, backend=backend)()
        assert not seen
        @torch.compile(backend=backend)
        def f(x):
            y = x + 1
            scope.current_scope_id()
            return y * 2
        assert torch.equal(f(torch.ones(2)), torch.full((2,), 4.0))
        assert seen
        root = __import__("torch_regions").status().root
        assert all(root not in str(node.stack_trace) for gm in seen for node in gm.graph.nodes)
        """
    )


def test_every_overlay_file_has_the_rule_of_its_folder():
    """Files that stock does not have, too: they are skipped exactly where a stock file beside them is."""
    run_code(
        """
        import os, torch, torch_regions
        from torch._dynamo import guards, trace_rules
        from torch.fx.experimental import symbolic_shapes
        from torch_regions._files import overlay_files
        status = torch_regions.status()
        files = overlay_files(status.root)
        stock, new = torch.__path__[0], 0
        for row in status.rows:
            ours = files[row.target.partition(":")[0]]
            name = os.path.relpath(ours, status.root + "/torch")
            theirs = os.path.join(stock, name)
            new += row.kind == "new"
            for inlined in (False, True):
                found, expected = (trace_rules.check_file(file, inlined) for file in (ours, theirs))
                assert found.skipped == expected.skipped, (name, inlined)
            assert trace_rules.is_torch(ours) == trace_rules.is_torch(theirs), name
            if row.kind == "new":
                folder = os.path.dirname(theirs)
                while not os.path.isdir(folder):  # a folder that stock does not have either
                    folder = os.path.dirname(folder)
                beside = [f for f in os.listdir(folder) if f.endswith(".py") and "inline" not in f]
                by_folder = {trace_rules.check_file(os.path.join(folder, f)).skipped for f in beside}
                assert trace_rules.check_file(ours).skipped in by_folder, name
                assert ours in guards.uninteresting_files() and ours in symbolic_shapes.uninteresting_files(), name
        assert new >= 40
        """
    )


def test_compiled_autograd_traces_no_overlay_file():
    """`backward()` and `autograd.grad` in a compiled function, without flag and mark."""
    run_code(
        """
        import torch
        net = torch.nn.Linear(3, 3)
        def step(x):
            net(x).sin().sum().backward()
            return x * 2
        def grads(x):
            return torch.autograd.grad(net(x).sin().sum(), list(net.parameters()))
        x = torch.randn(2, 3)
        with torch._dynamo.config.patch(compiled_autograd=True):
            for function in (step, grads):
                net.zero_grad()
                expected = function(x), [p.grad for p in net.parameters()]
                torch._dynamo.reset()
                net.zero_grad()
                for backend in ("eager", "aot_eager"):
                    net.zero_grad()
                    found = torch.compile(function, backend=backend)(x), [p.grad for p in net.parameters()]
                    torch.testing.assert_close(found[0], expected[0])
                    if expected[1][0] is not None:
                        torch.testing.assert_close(found[1], expected[1])
        """
    )
