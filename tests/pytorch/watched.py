"""Makes a collective when a file appears: `watched.py TIMEOUT_S BEGUN GO`. Creates the file BEGUN
when it waits for the file GO."""

from __future__ import annotations

import datetime
import os
import sys
import time

import torch
import torch.distributed as dist

timeout, begun, go = sys.argv[1:]
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=int(timeout)))
x = torch.ones(4).cuda()
work = dist.broadcast(x, 0, async_op=True)  # the watchdog has something to look at
work.wait()
torch.cuda.synchronize()
open(begun, "w").close()
while not os.path.exists(go):
    time.sleep(0.01)
dist.all_reduce(x)
print(x[0].item(), flush=True)
dist.destroy_process_group()
