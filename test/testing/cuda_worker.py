"""One model, flat and with the flag, compiled for CUDA without one; prints what was found as JSON.

usage: python test/testing/cuda_worker.py MODEL [--training] [--layers N] [--dtype NAME] [--ptx] [--dynamic] [--set OPTION=VALUE ...]
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import sys
from pathlib import Path
from typing import Any


sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

import cuda_device  # noqa: E402


def _numbers(record: Any, ptx: bool, kernels_compiled: dict[str, int]) -> dict[str, Any]:
    import cuda_codegen
    from torch._dynamo.utils import counters

    if ptx:
        for content, kernel in record.kernels.items():
            if content not in kernels_compiled:
                kernels_compiled[content] = cuda_codegen.compile_kernel(kernel)
    return {
        "wrappers": len(record.wrappers),
        "characters": sum(map(len, record.wrappers)),
        "kernels": sorted(record.kernels),
        "named": sorted([kernel.name, content] for content, kernel in record.kernels.items()),
        "twice": sum(len(contents) - len(set(contents)) for contents in record.defined),
        "launches": sum(record.launches.values()),
        "operators": dict(record.operators),
        "copies": record.copies,
        "bodies": sum(map(cuda_codegen.bodies, record.wrappers)),
        "crossings": sum(map(cuda_codegen.crossings, record.wrappers)),
        "peak": record.peak,
        "graphs": record.graphs,
        "skips": counters["inductor"]["cudagraph_skips"],
        "tuned": sorted(record.tuned),
        "wrong": record.wrong,
        "kept": dict(counters["region_bodies"]),
        "compiled": sum(kernels_compiled[content] for content in record.kernels) if ptx else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--training", action="store_true")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--dtype", default=None)
    parser.add_argument("--ptx", action="store_true")
    parser.add_argument("--dynamic", action="store_true", default=None, help="all sizes are symbols")
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE")
    parser.add_argument("--keep", type=Path, help="a folder for the wrappers")
    given = parser.parse_args()
    cuda_device.stand_in()
    import cuda_codegen
    import torch
    from torch._dynamo.utils import counters
    from torch._subclasses.fake_tensor import FakeTensorMode

    from benchmarks import zoo_more

    options = {name: ast.literal_eval(value) for name, value in (each.split("=", 1) for each in given.set)}
    found, compiled = {}, {}
    for name, flag in (("overlay flat", False), ("flag", True)):
        mode = FakeTensorMode()
        example = zoo_more.build(given.model, given.layers)
        example.model.train(given.training)
        cuda_codegen.move_example(example, mode, getattr(torch, given.dtype) if given.dtype else None)
        counters.clear()
        with contextlib.redirect_stdout(sys.stderr):
            record = cuda_codegen.run_step(
                example.model,
                example.call,
                training=given.training,
                flag=flag,
                mode=mode,
                dynamic=given.dynamic,
                options=options,
            )
        if given.keep:
            for number, text in enumerate(record.wrappers):
                (given.keep / f"{given.model}_{name}_{number}.py").write_text(text)
        found[name] = _numbers(record, given.ptx, compiled)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
