"""`python -m rankfold.elastic` for benchmarks.elastic, where the processes of one stage are on
different types of CPU: instruction sets to which PyTorch is limited. The runtime refuses to
continue at D1 on another type; here it does not, to show what would come of it.

Usage: elastic_types.py TYPES run …, TYPES such as `avx2,avx2,default`: those of the processes of a
stage with so many of them. All processes of other stages have the first type.
"""

import os
import sys

from rankfold.elastic import __main__, determinism

kinds = sys.argv[1].split(",")
arguments = sys.argv[2:]
pinned = "D2" in arguments
os.environ["ATEN_CPU_CAPABILITY"] = kinds[0]
if pinned:
    # Sets the variables here, and as the last step in each process.
    determinism.pin()
    determinism.pin = lambda: None
    determinism.check = lambda _: None  # PyTorch looks once for the type, in each process

from rankfold.elastic import private, run, state  # noqa: E402  (the variables come first)

private.import_all = lambda: None  # its operators would choose instructions for all processes
state._check_code_path = lambda _: None
begin = run.Running._begin


def begin_on_type(running, plan, index, parent):
    import torch

    kind = kinds[index] if running.count == len(kinds) else kinds[0]
    os.environ["ATEN_CPU_CAPABILITY"] = kind
    if pinned:
        os.environ.update(determinism.CODE_PATH)
        kind = "avx2"
    found = torch.backends.cpu.get_cpu_capability()
    if found.lower() != kind:
        raise SystemExit(f"process {index} uses {found}, not {kind}")
    return begin(running, plan, index, parent)


run.Running._begin = begin_on_type
sys.exit(__main__.main(arguments))
