"""`python -m torch_regions explain` on programs that end in every way: what it says, and its exit status."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest
from testing.overlay_tools import REPO


jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed: make .venv installs it")
SCHEMA = json.loads((REPO / "torch_regions" / "_report" / "schema.json").read_text())

HEAD = """
import os, signal, sys
import torch
from testing.reported_programs import Layers

def run(scales=(0.1,) * 4, **options):
    return torch.compile(Layers(scales, **options), backend="eager")(torch.ones(2, 8))
"""


def explain(folder, program, *options, arguments=()):
    """Exit status, standard output, standard error, and the data of each JSON file by name."""
    script = folder / "program.py"
    script.write_text(HEAD + textwrap.dedent(program))
    command = [sys.executable, "-m", "torch_regions", "explain", "--json", str(folder / "out.json"), *options]
    path = os.pathsep.join([str(REPO), str(REPO / "test")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TORCH_REGIONS": "1"}
    done = subprocess.run([*command, str(script), *arguments], capture_output=True, text=True, env=environment)
    files = {file.name: json.loads(file.read_text()) for file in folder.glob("*.json")}
    for data in files.values():
        jsonschema.validate(data, SCHEMA)
    return done.returncode, done.stdout, done.stderr, files


def one(files):
    """The compiles of the only process."""
    (data,) = files.values()
    (process,) = data["processes"]
    return process["compiles"]


def test_all_is_reused(tmp_path):
    status, out, said, files = explain(
        tmp_path, 'run(); print("mine", sys.argv[1:])', "--flag", arguments=["--json", "x"]
    )
    assert (status, out) == (0, "mine ['--json', 'x']\n")  # what follows the program is the program's
    (compiled,) = one(files)
    assert [call["outcome"] for call in compiled["calls"]] == ["INLINED", "TRACED", "REUSED", "REUSED"]
    assert "Block (automatic)" in said and "4 calls: 1 traced, 2 reused, 1 inlined" in said
    assert compiled["stages"]["trace"] > 0


def test_three_reasons(tmp_path):
    program = "run((0.1, 0.1, 0.1, 0.2), dropout=0.5)"
    status, _, said, files = explain(tmp_path, program, "--flag")
    (compiled,) = one(files)
    assert status == 0
    assert {call["miss"] for call in compiled["calls"]} == {None, "ARGUMENTS_DIFFER", "GUARD_FAILS"}
    assert "RANDOM" in compiled["left_out"]
    assert "self.layers[3].scale is 0.2, self.layers[1].scale is 0.1" in said
    assert "self.layers[1] called at" in said and "requires_grad True, False in the earlier call" in said
    assert "hold it as a tensor" in said


def test_a_graph_break(tmp_path):
    program = """
        model = Layers((0.1,) * 3)
        def f(x):
            x = model(x)
            torch._dynamo.graph_break()
            return model(x)
        torch.compile(f, backend="eager")(torch.ones(2, 8))
    """
    status, _, _, files = explain(tmp_path, program, "--flag")
    assert status == 0
    assert [len(compiled["calls"]) for compiled in one(files)] == [3, 3]


def test_no_repeats_and_no_flag(tmp_path):
    status, _, said, files = explain(tmp_path, "run((0.1,))")
    (compiled,) = one(files)
    assert status == 0 and not compiled["regions"]
    assert "no call of a region was compiled" in said and "the flag was off" in said


def test_no_repeats_under_the_flag(tmp_path):
    status, _, said, files = explain(tmp_path, "run((0.1,))", "--flag")
    (compiled,) = one(files)
    assert status == 0 and compiled["regions"] and not compiled["bodies"]
    assert "no call of a region was compiled" in said and "the flag was off" not in said


def test_a_script_that_raises(tmp_path):
    status, _, said, files = explain(tmp_path, 'run(); raise ValueError("mine")', "--flag")
    assert status == 1 and "ValueError: mine" in said
    assert len(one(files)) == 1


def test_the_exit_status_is_the_programs(tmp_path):
    assert explain(tmp_path, "sys.exit(7)")[0] == 7


def test_one_that_never_compiles(tmp_path):
    status, _, said, files = explain(tmp_path, "print(torch.ones(2).sum())")
    assert (status, one(files)) == (0, [])
    assert "nothing was compiled in this process" in said


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM"])
def test_one_that_is_killed(tmp_path, name):
    status, _, said, files = explain(tmp_path, f"run(); os.kill(os.getpid(), signal.{name})", "--flag")
    assert status == 128 + getattr(signal, name)
    assert f"the program was ended by {name}" in said
    assert len(one(files)) == 1


TWO = """
    import multiprocessing
    if __name__ == "__main__":
        run()
        for method in ("fork", "spawn"):
            child = multiprocessing.get_context(method).Process(target=run, args=((0.1,) * {n},))
            child.start()
            child.join()
            assert child.exitcode == 0
"""


def test_processes_have_a_file_each(tmp_path):
    status, _, said, files = explain(tmp_path, TWO.replace("{n}", "5"), "--flag")
    assert status == 0
    found = {name: [len(c["calls"]) for c in data["processes"][0]["compiles"]] for name, data in files.items()}
    assert found.pop("out.json") == [4]
    assert sorted(found.values()) == [[5], [5]]
    assert said.count("process ") == 3


def test_merged_they_have_one(tmp_path):
    status, _, _, files = explain(tmp_path, TWO.replace("{n}", "5"), "--flag", "--merge")
    assert (status, list(files)) == (0, ["out.json"])
    assert [len(process["compiles"]) for process in files["out.json"]["processes"]] == [1, 1, 1]


def test_a_module(tmp_path):
    (tmp_path / "mine.py").write_text(HEAD + "run()\n")
    path = os.pathsep.join([str(REPO), str(REPO / "test"), str(tmp_path)])
    command = [sys.executable, "-m", "torch_regions", "explain", "--flag", "-m", "mine"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0
    assert "4 calls: 1 traced, 2 reused, 1 inlined" in done.stderr


def test_what_cannot_be_written_is_said_before_the_program_runs(tmp_path):
    command = [sys.executable, "-m", "torch_regions", "explain", "--html", str(tmp_path / "none" / "x.html"), "p.py"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "there is no folder for" in done.stderr
    assert subprocess.run([*command[:4]], capture_output=True, text=True).returncode == 2
