"""Prints all that can be read of the compilations of some models, without flag and mark: see test_neutral_models.py."""

import logging
import re
import sys

import torch
import torch._dynamo
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters

from benchmarks.zoo_more import build


# Names that are drawn, addresses, times, and how many frames of Dynamo's own are above the program's: one more, which
# asks for the flag.
_WANDERS = re.compile(
    r"[0-9a-f]{8}([_-])[0-9a-f]{4}(\1[0-9a-f]{4}){2}\1[0-9a-f]{12}"
    r"|0x[0-9a-f]+|(?<!\d)\d{7,}(?!\d)|\d+\.\d+(e-\d+)?s?|\b\d+ (us|ms)\b|elided \d+ frames"
)
_SETS = re.compile(r"frozenset\(\{(.*)\}\)")


def _steady(text):
    return _SETS.sub(lambda found: str(sorted(found[1].split(", "))), _WANDERS.sub("N", text))


class Kept(logging.Handler):
    """Prints each line of a log as it is, but for where in torch it was written, and when."""

    def emit(self, record: logging.LogRecord) -> None:
        artifact = getattr(record, "artifact_name", "")
        print("log", record.name, record.levelname, artifact, _steady(record.getMessage()))


def graphs_of(called, example, train):
    """Compiles once for training or inference, and prints the graphs, guards and counters."""

    def shown(kind):
        def compiler(gm, inputs):
            print(kind, gm.print_readable(print_output=False, include_stride=True, include_device=True))
            print(gm.graph)
            return gm.forward

        return compiler

    aot = aot_autograd(fw_compiler=shown("forward"), bw_compiler=shown("backward"))

    def backend(gm, inputs):
        shown("dynamo")(gm, inputs)
        print([sorted(node.meta) for node in gm.graph.nodes])
        return aot(gm, inputs)

    torch._dynamo.reset()
    counters.clear()
    example.model.train(train)
    with torch.set_grad_enabled(train):
        out = example.call(torch.compile(called, backend=backend))
        if train:
            out.float().pow(2).mean().backward()
    print(sorted((group, sorted(of_group.items())) for group, of_group in counters.items()))


def main(names):
    handler = Kept()
    torch._logging.set_logs(dynamo=logging.DEBUG, guards=True, recompiles_verbose=True, graph_breaks=True)
    for name in ("torch._dynamo", "torch.fx.experimental.symbolic_shapes", "torch._functorch"):
        logger = logging.getLogger(name)
        for other in list(logger.handlers):
            logger.removeHandler(other)
        logger.propagate = False
        logger.addHandler(handler)
    for name in names:
        torch.manual_seed(0)
        example = build(name, 2, False)
        for train in (True, False):
            print("==", name, train)
            graphs_of(example.model, example, train)


if __name__ == "__main__":
    main(sys.argv[1:])
