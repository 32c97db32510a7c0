"""`python -m rankfold.elastic` in a rank with the PyTorch of `make torch`, which is older than the
ones that the runtime was tested with: without the names that it does not have."""

import sys

import torch
import torch.distributed as dist

sys.path.append(sys.argv.pop(1))

if not hasattr(torch.accelerator, "Graph"):
    torch.accelerator.Graph = type("Graph", (), {})
if not hasattr(dist.AllreduceOptions, "asyncOp"):
    dist.AllreduceOptions.asyncOp = True

from rankfold.elastic import context, gpu, private
from rankfold.elastic.__main__ import main

private.check_version = lambda version: None
context.defaults = dict
gpu.check_covered = lambda file: None
sys.exit(main(sys.argv[1:]))
