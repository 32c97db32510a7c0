"""Uses of DistributedDataParallel over gloo with tensors on the device, in stock processes and in
logical workers: `elastic_train.py FOLDER [kill]`. FOLDER has rankfold. Prints the bits of losses
and norms, and digests of parameters, gradients, the optimizer's state and buffers.

In a logical worker it also checks that the others have no gradients on the device. With `kill` it
ends itself and the run's parent after some steps."""

import contextlib
import hashlib
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

sys.path.append(sys.argv[1])

from rankfold import elastic
from rankfold.elastic import current

STEPS, BATCH, WIDTH = 4, 4, 192
torch.use_deterministic_algorithms(True)
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", 0)
data = [(torch.randn(32, generator=torch.Generator().manual_seed(n)), n % 10) for n in range(48)]


class Net(nn.Module):
    def __init__(self, branches=1):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.2))
        self.wide = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(branches))
        self.head = nn.Linear(WIDTH, 10)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        x = self.body(x + 0.1 * torch.randn_like(x))
        return self.head(self.wide[(self.calls + rank) % len(self.wide)](x).relu())


def bits(number):
    return bytes(number.detach().float().cpu().numpy()).hex()


def digest(tensors):
    found = hashlib.sha256()
    for each in tensors:
        found.update(each.detach().cpu().numpy().tobytes())
    return found.hexdigest()[:16]


def on_device(models, mine):
    """Bytes of the large gradients of other workers of the process."""
    return sum(
        each.grad.untyped_storage().nbytes()
        for model in models
        for each in model.parameters()
        if model is not mine and each.grad is not None and each.numel() >= WIDTH * WIDTH
    )


def train(name, scaled=False, accumulates=False, branches=1, **options):
    torch.manual_seed(100 + rank)
    model = DDP(Net(branches).to(device), bucket_cap_mb=0.05, **options)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cuda", init_scale=8.0, growth_interval=2, enabled=scaled)
    model, opt, _ = elastic.wrap(model, opt)
    kept = elastic.local(scaler=scaler)
    worker = current.worker()
    models = [] if worker is None else worker.host.__dict__.setdefault(name, [])
    models.append(model)
    sampler = torch.utils.data.DistributedSampler(data, world, rank)
    loader = torch.utils.data.DataLoader(data, BATCH, sampler=sampler)
    for _ in elastic.epochs(1):
        for step, (x, y) in enumerate(elastic.steps(loader)):
            if not accumulates or step % 2 == 0:
                opt.zero_grad()
            if not options and not accumulates:
                assert on_device(models, model) == 0
            with contextlib.nullcontext() if step % 2 or not accumulates else model.no_sync():
                with torch.autocast("cuda", torch.float16, enabled=scaled):
                    loss = nn.functional.cross_entropy(model(x.to(device)).float(), y.to(device))
                if scaled and step == 2 and rank == 1:
                    loss = loss * float("inf")
                kept.scaler.scale(loss).backward()
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if step % 2 or not accumulates:
                kept.scaler.unscale_(opt)
                print(bits(nn.utils.clip_grad_norm_(model.parameters(), 1.0)), end=" ")
                kept.scaler.step(opt)
                kept.scaler.update()
            if sys.argv[2:] == ["kill"] and (name, rank, step) == ("static", 1, 2):
                os.kill(os.getppid(), signal.SIGKILL)
                signal.pause()
            gradients = [each.grad for each in model.parameters() if each.grad is not None]
            state = [each for p in model.parameters() for each in opt.state[p].values()]
            shown = map(digest, (model.parameters(), gradients, state, model.buffers()))
            print(name, rank, step, bits(loss), bits(mean), *shown, flush=True)


train("plain")
train("scaled", scaled=True)
train("accumulates", accumulates=True)
train("static", static_graph=True)
train("unused", branches=2, find_unused_parameters=True)
train("view", gradient_as_bucket_view=True)
