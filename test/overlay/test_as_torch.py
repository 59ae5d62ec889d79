"""Dynamo treats the overlay's files as torch's own."""

from __future__ import annotations


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
