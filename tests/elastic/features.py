"""Uses of DistributedDataParallel, one function each. Prints losses, and a digest of
parameters, buffers, gradients and the optimizer's state after each step.

Usage: features.py [NAME…]"""

import contextlib
import hashlib
import os
import random
import signal
import sys

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler, get_worker_info

import rankfold.elastic as elastic

EPOCHS, BATCHES = int(os.environ.get("EPOCHS", "2")), 3


class Noisy(Dataset):
    """Random augmentation from three generators. Each copy counts its items."""

    def __init__(self):
        self.items = 0

    def __len__(self):
        return 4 * BATCHES * dist.get_world_size()

    def __getitem__(self, index):
        self.items += 1
        noise = random.random() + float(np.random.rand()) + torch.randn(6)
        return (index % 5) + 0.1 * noise, index % 5


class Net(nn.Module):
    def __init__(self, branches=1):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Dropout(0.2))
        self.heads = nn.ModuleList(nn.Linear(40, 5) for _ in range(branches))
        self.calls = 0  # state that is neither parameter nor buffer

    def forward(self, x):
        if self.training:
            self.calls += 1
        return self.heads[self.calls % len(self.heads)](self.body(x)) * (1 + self.calls / 100)


def kill():
    """Kills this process, or its parent, if that has not been done."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(os.environ["KILLED"], os.O_CREAT | os.O_EXCL))
        os.kill(os.getppid() if "KILL_PARENT" in os.environ else os.getpid(), signal.SIGKILL)
        signal.pause()


class Crossed(nn.Module):
    """Each second pass has its layers in reverse order, so its gradients are ready in another."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(7))
        self.head = nn.Linear(6, 5)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        for layer in self.layers if self.calls % 2 else reversed(self.layers):
            x = torch.tanh(layer(x))
        return self.head(x)


def digest(model, opt):
    found = hashlib.sha256()
    tensors = [*model.parameters(), *model.buffers()]
    tensors += [p.grad for p in model.parameters() if p.grad is not None]
    tensors += [
        value
        for parameter in model.parameters()
        for _, value in sorted(opt.state[parameter].items())
        if isinstance(value, torch.Tensor)
    ]
    for tensor in tensors:
        found.update(tensor.detach().numpy().tobytes())
    return found.hexdigest()[:16]


def train(name, model, opt, sched, step, each_epoch=lambda epoch: False, **loading):
    """`step(number, x, y)` returns the loss. `each_epoch` returns whether to stop."""
    model, opt, sched = elastic.wrap(model, opt, sched)
    data = Noisy()
    sampler = DistributedSampler(data, seed=3)
    if "shuffle" in loading:
        loader = DataLoader(data, batch_size=4 * dist.get_world_size(), **loading)
    else:
        loader = DataLoader(data, batch_size=4, sampler=sampler, **loading)
    kept = elastic.local(total=0.0)
    for epoch in elastic.epochs(EPOCHS):
        sampler.set_epoch(epoch)
        for number, (x, y) in enumerate(elastic.steps(loader)):
            loss = step(epoch * BATCHES + number, x, y)
            kept.total += loss.item()
            print(name, epoch, number, kept.total.hex(), random.random(), digest(model, opt))
            if "MADE" in os.environ:  # a file: steps that are repeated are there twice
                with open(os.environ["MADE"], "a") as made:
                    made.write(f"{name} {epoch} {number} {dist.get_rank()}\n")
            if f"{name} {epoch} {number} {dist.get_rank()}" == os.environ.get("KILL"):
                kill()
        print(name, epoch, [group["lr"] for group in opt.param_groups])
        if each_epoch(epoch):
            break


def simple(name, model, opt, sched=None, **options):
    def step(number, x, y):
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss

    train(name, model, opt, sched, step, **options)


def made(net=None, **options):
    """A model with small buckets, so that it has several, and an optimizer."""
    model = DDP(Net() if net is None else net, bucket_cap_mb=0.0005, **options)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def scaler():
    """The third step overflows and is skipped."""
    model, opt = made()
    kept = elastic.local(scaler=torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2))

    def step(number, x, y):
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), y)
        if number == 2 and dist.get_rank() == 1:
            loss = loss * float("inf")
        kept.scaler.scale(loss).backward()
        kept.scaler.unscale_(opt)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        kept.scaler.step(opt)
        kept.scaler.update()
        print("scale", kept.scaler.get_scale(), norm.item().hex())
        return loss

    train("scaler", model, opt, None, step)


def accumulate():
    """A step after each two batches, so it is between those of an epoch, too."""
    model, opt = made()

    def step(number, x, y):
        last = number % 2 == 1
        with contextlib.nullcontext() if last else model.no_sync():
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
        if last:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad()
        return loss

    train("accumulate", model, opt, None, step)


def unused():
    simple("unused", *made(Net(branches=2), find_unused_parameters=True))


def differently():
    """Each rank uses other layers in a step."""
    net = Net(branches=2)
    net.calls = dist.get_rank()
    simple("differently", *made(net, find_unused_parameters=True))


def static():
    simple("static", *made(static_graph=True))


def view():
    simple("view", *made(gradient_as_bucket_view=True))


def groups():
    """Two groups, a scheduler per step, and one per epoch."""
    model = DDP(Net(), bucket_cap_mb=0.0005)
    parts = [{"params": model.module.body.parameters()}]
    parts.append({"params": model.module.heads.parameters(), "lr": 0.3})
    opt = torch.optim.SGD(parts, lr=0.1, momentum=0.9)
    sched = torch.optim.lr_scheduler.OneCycleLR(
        opt, max_lr=[0.2, 0.5], total_steps=EPOCHS * BATCHES + 1
    )
    kept = elastic.local(epochly=torch.optim.lr_scheduler.ExponentialLR(opt, 0.5))

    def step(number, x, y):
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        sched.step()
        return loss

    train("groups", model, opt, sched, step, each_epoch=lambda _: kept.epochly.step())


def seeded(number):
    """A worker_init_fn."""
    random.seed(number + get_worker_info().seed)


def workers():
    """Their seeds are drawn from a generator of the script's."""
    generator = torch.Generator().manual_seed(5 + dist.get_rank())
    simple("workers", *made(), num_workers=2, generator=generator)


def persistent():
    options = {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 1}
    simple("persistent", *made(), worker_init_fn=seeded, **options)


def evaluate():
    """Rank 0 evaluates. All stop when one does."""
    model, opt = made()
    kept = elastic.local(best=float("inf"))

    def stops(epoch):
        stop = torch.zeros(1)
        if dist.get_rank() == 0:
            model.eval()
            with torch.no_grad():
                kept.best = min(kept.best, model.module(torch.ones(2, 6)).sum().item())
            model.train()
            stop += epoch == 0
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)
        dist.barrier()
        best = [torch.zeros(1) for _ in range(dist.get_world_size())]
        dist.all_gather(best, torch.tensor([min(kept.best, 1e9) + dist.get_rank()]))
        together = torch.zeros(dist.get_world_size())
        dist.all_gather_single(together, best[dist.get_rank()])
        print("all", together.tolist())
        print("best", kept.best.hex(), stop.item())
        return stop.item() > 0

    simple("evaluate", model, opt, each_epoch=stops)


def crossed():
    simple("crossed", *made(Crossed()))


def shuffled():
    """The sampler draws its seed from the generator that dropout uses."""
    simple("shuffled", *made(), shuffle=True)


class Wide(nn.Module):
    """The gradients of a layer take more memory than a small one's."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 6000), nn.ReLU(), nn.Linear(6000, 5))

    def forward(self, x):
        return self.body(x)


def wide():
    """Gradients stay the same tensors, which others know, too. One is an array of NumPy's."""
    model, opt = made(Wide())
    held = {}

    def step(number, x, y):
        opt.zero_grad(set_to_none=False)
        loss = nn.functional.cross_entropy(model.forward(x), y)
        loss.backward()
        gradients = [each.grad for each in model.parameters()]
        held.setdefault("views", [each.view(-1) for each in gradients])
        held.setdefault("array", gradients[2].numpy())
        same = [torch.equal(a.view(-1), b) for a, b in zip(gradients, held["views"], strict=True)]
        print("held", same, bool((held["array"] == gradients[2].numpy()).all()))
        opt.step()
        return loss

    train("wide", model, opt, None, step)


def interleaved():
    """Two models: the first one's step is between the second one's passes. The second has another
    optimizer for its last layer, and makes two passes per step."""
    first, first_opt = made(Wide())
    second = DDP(Wide())
    layers = second.module.body
    second_opt = torch.optim.SGD(layers[:2].parameters(), 0.1)
    third_opt = torch.optim.SGD(layers[2].parameters(), 0.1, momentum=0.9)
    elastic.wrap(second, second_opt)
    elastic.wrap(second, third_opt)

    def step(number, x, y):
        with torch.no_grad():
            target = second(x)
        predicted = second(x)
        loss = nn.functional.mse_loss(first(x), target)
        first_opt.zero_grad()
        loss.backward()
        first_opt.step()
        nn.functional.cross_entropy(predicted, y).backward(retain_graph=True)
        second_opt.step()
        nn.functional.cross_entropy(predicted, y).backward()  # adds what no other rank gets
        print([each.grad.sum().item().hex() for each in second.parameters()])
        second.zero_grad()
        nn.functional.cross_entropy(second(x), y).backward()
        third_opt.step()
        second.zero_grad()
        print(digest(second, third_opt), digest(second, second_opt))
        return loss

    train("interleaved", first, first_opt, None, step)


FEATURES = (scaler, accumulate, unused, static, view, groups, workers, persistent, evaluate)
FEATURES += (crossed, shuffled, wide, interleaved, differently)
# They make EPOCHS * BATCHES steps each, except evaluate, which makes BATCHES.
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
random.seed(dist.get_rank())
np.random.seed(dist.get_rank())
for feature in FEATURES:
    if len(sys.argv) == 1 or feature.__name__ in sys.argv[1:]:
        feature()
dist.destroy_process_group()
