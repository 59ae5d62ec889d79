"""Forks, threads and the end of a process, while programs with regions are compiled."""

from __future__ import annotations

import pytest
from testing.overlay_tools import run_code, run_python


PROGRAM = """
import gc, os, sys, threading, torch, torch._dynamo, torch_regions
from torch._dynamo.regions import switch
from torch_regions import _switch
def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()) for _ in range(3)])
X = torch.ones(2, 4)
def compiled(backend="eager", flag=True):
    torch._dynamo.config.use_graph_deduplication = flag
    model = net()
    return torch.equal(torch.compile(model, backend=backend)(X), model(X))
def is_off():
    stock = all(each.place.value.__code__ is each.code for each in _switch._switched.values())
    return stock and not switch.has_regions() and not switch.is_compiling()
def waited(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


def test_fork_inside_a_compile():
    """The child goes on compiling, and compiles others; so does the parent, and both are off afterwards."""
    result = run_code(
        PROGRAM
        + """
children = []
def forks(graph, inputs):
    assert switch.has_regions()
    children.append(os.fork())
    assert switch.has_regions() and len(_switch._threads_on) == 1
    return graph.forward
good = compiled(forks) and is_off()
torch._dynamo.reset()
good = good and compiled() and compiled(flag=False) and is_off() and torch_regions.status().active
if children == [0]:
    os._exit(0 if good else 1)
print(good, waited(children[0]))
"""
    )
    assert result.out == "True 0\n" and not result.warnings, result


def test_fork_while_another_thread_compiles():
    """The other thread's compile is not the child's: stock's functions are there."""
    result = run_code(
        PROGRAM
        + """
begun, go_on = threading.Event(), threading.Event()
def waits(graph, inputs):
    begun.set()
    go_on.wait()
    return graph.forward
thread = threading.Thread(target=compiled, args=(waits,))
thread.start()
begun.wait()
assert not is_off() and not switch.has_regions()
child = os.fork()
if child == 0:
    os._exit(0 if is_off() and not _switch._threads_on else 1)
status = waited(child)
go_on.set()
thread.join()
print(status, is_off())
"""
    )
    assert result.out == "0 True\n", result


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_methods_of_multiprocessing(method, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        PROGRAM
        + f"""
import multiprocessing
def work(queue):
    queue.put((compiled(), is_off(), torch_regions.status().active, torch_regions.status().digest))
if __name__ == "__main__":
    here = compiled(), is_off(), torch_regions.status().active, torch_regions.status().digest
    context = multiprocessing.get_context({method!r})
    queue = context.Queue()
    process = context.Process(target=work, args=(queue,))
    process.start()
    there = queue.get(timeout=250)
    process.join()
    print(here == there, here[:3], process.exitcode)
"""
    )
    result = run_python(str(script), cwd=tmp_path, OMP_NUM_THREADS="1")
    assert result.out == "True (True, True, True) 0\n" and not result.warnings, result


def test_eight_threads():
    """They compile, run, collect and change the flag; nothing is left on, and each result is right."""
    result = run_code(
        PROGRAM
        + """
sys.setswitchinterval(1e-4)
errors, barrier = [], threading.Barrier(8)
def work(number):
    try:
        barrier.wait()
        for turn in range(3):
            model = net()
            model[0][0].weight.data.mul_(number)
            torch._dynamo.config.use_graph_deduplication = (number + turn) % 2 == 0
            found = torch.compile(model, backend="eager")(X)
            if not torch.equal(found, model(X)):
                errors.append((number, turn, "another result"))
            del model
            gc.collect()
    except BaseException as error:
        errors.append((number, repr(error)[:300]))
threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
[thread.start() for thread in threads]
[thread.join(250) for thread in threads]
print(errors, is_off(), _switch._threads_on)
"""
    )
    assert result.out == "[] True set()\n", result


@pytest.mark.parametrize("end", ["sys.exit(0)", "raise KeyboardInterrupt", "os._exit(0)", "pass"])
def test_exit_while_a_thread_compiles(end):
    result = run_code(
        PROGRAM
        + f"""
begun = threading.Event()
def waits(graph, inputs):
    begun.set()
    threading.Event().wait()
threading.Thread(target=compiled, args=(waits,), daemon=True).start()
begun.wait()
{end}
""",
        check=False,
        timeout=120,
    )
    assert result.code == (-2 if "Keyboard" in end else 0), result
    assert "Fatal" not in result.err and ("Traceback" in result.err) == ("Keyboard" in end), result.err
