"""Rank 1 leaves its loop early; the others wait for it."""

import torch.distributed as dist
from torch import ones

dist.init_process_group("gloo")
print("rank", dist.get_rank())
if dist.get_rank() != 1:
    dist.all_reduce(ones(3))
