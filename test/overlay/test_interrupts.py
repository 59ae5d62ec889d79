"""An interrupt while the overlay is put in place: all of it is undone, and the next one who asks decides anew."""

from __future__ import annotations

import textwrap

from testing.overlay_tools import run_code


# In forked children, a KeyboardInterrupt is raised at the n-th line that the loader executes.
INTERRUPTED = """
    import os, sys, types
    import torch, torch_regions
    from torch_regions import _activate, _dynamo_rules, _switch, overlay

    import torch_regions._decide, torch_regions._extend, torch_regions._load, torch_regions._patch

    # Without _rebind: its walk over the heap of the first module has most of all lines.
    LOADER = tuple(f"torch_regions/{name}.py" for name in ("_decide", "_extend", "_load", "_patch", "_switch"))
    finder = _activate.current()
    watched = [m for n, m in sys.modules.items() if n in finder.files or n in _dynamo_rules.MODULES]

    def traced(limit):
        count = 0
        def lines(frame, event, arg):
            nonlocal count
            if event == "line":
                count += 1
                if count == limit:
                    raise KeyboardInterrupt
            return lines
        def calls(frame, event, arg):
            return lines if frame.f_code.co_filename.endswith(LOADER) else None
        sys.settrace(calls)
        try:
            torch_regions.status()
        finally:
            sys.settrace(None)
        return count

    def state():
        finder._stand_ins.take_away()  # placed anew, each time of other functions
        found = {}
        for module in watched:
            for name, value in vars(module).items():
                found[module.__name__, name] = value
                if isinstance(value, type) and value.__module__ == module.__name__:
                    found.update({(module.__name__, name, n): v for n, v in vars(value).items()})
                if isinstance(value, types.FunctionType):
                    found[module.__name__, name, "code"] = value.__code__
        finder._stand_ins.place()
        return found

    def differing(before, after):
        keys = before.keys() | after.keys()
        return sorted(str(k) for k in keys if before.get(k) is not after.get(k) and k[1] not in ("__annotations__",))

    def child(limit):
        before = state()
        try:
            traced(limit)
            print("not interrupted", limit)
            return 1
        except KeyboardInterrupt:
            pass
        if finder.decision is not None:  # it came when all was in place
            return 0 if finder.decision.active and overlay.replaced() else 1
        left = [n for n, m in sys.modules.items() if getattr(m, "__file__", None) in finder.files.values()]
        changed = differing(before, state())
        if left or changed or overlay.replaced() or _switch.switched() or finder.decision is not None:
            print("half applied after", limit, left[:3], changed[:5], list(overlay.replaced())[:3])
            return 1
        if not torch_regions.status() or not torch_regions.status().rows:
            print("no second decision after", limit, torch_regions.status().reason)
            return 1
        import torch._dynamo
        torch._dynamo.config.use_graph_deduplication = True
        f = torch.compile(torch.nn.Sequential(*[torch.nn.Linear(2, 2) for _ in range(3)]), backend="eager")
        f(torch.ones(1, 2))
        return 0

    def forked(run):
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            try:
                code = run()
            except BaseException as error:
                import traceback
                traceback.print_exc()
                code = 3
            sys.stdout.flush()
            os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def measure():
        with open(OUT, "w") as out:
            out.write(str(traced(-1)))
        return 0

    assert forked(measure) == 0
    total = int(open(OUT).read())
    assert total > 300, total
    # The first lines, some in between, and the last one.
    limits = sorted({1, 2, 5, 20, total, *(total * k // PARTS for k in range(1, PARTS))})
    bad = [n for n in limits if forked(lambda: child(n))]
    print("lines", total, "interrupts", len(limits), "bad", bad)
    assert not bad
"""


def test_an_interrupt_leaves_the_overlay_whole_or_off(repo_is_on, tmp_path):
    head = f"OUT, PARTS = {str(tmp_path / 'lines')!r}, 8\n"
    result = run_code(head + textwrap.dedent(INTERRUPTED))
    assert "bad []" in result.out, result.out + result.err
