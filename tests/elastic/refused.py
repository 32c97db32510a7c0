"""Uses something that the elastic runtime refuses. Rank 1 does; the others wait for it.

Usage: refused.py NAME"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset

import rankfold.elastic as elastic


class Endless(IterableDataset):
    def __iter__(self):
        return iter([torch.ones(2, 4)])


def sparse():
    model = DDP(nn.Embedding(4, 4, sparse=True))
    elastic.wrap(model, torch.optim.SGD(model.parameters(), 0.1))


def join():
    model, _, _ = elastic.wrap(*made())
    with model.join():
        model(torch.ones(2, 4))


def mixed_precision():
    from torch.nn.parallel.distributed import _MixedPrecision

    elastic.wrap(*made(mixed_precision=_MixedPrecision(param_dtype=torch.bfloat16)))


def power_sgd():
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as hooks

    model, _, _ = elastic.wrap(*made())
    model.register_comm_hook(hooks.PowerSGDState(None), hooks.powerSGD_hook)
    model(torch.ones(2, 4))


def closure():
    model = DDP(nn.Linear(4, 4))
    model, opt, _ = elastic.wrap(model, torch.optim.LBFGS(model.parameters()))
    opt.step(lambda: model(torch.ones(2, 4)).sum())


def zero():
    model = DDP(nn.Linear(4, 4))
    elastic.wrap(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1))


def fsdp():
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(nn.Linear(4, 4), device_id=torch.device("cpu"))
    elastic.wrap(model, torch.optim.SGD(model.parameters(), 0.1))


def compiled():
    net = nn.Linear(4, 4)
    net.compile()
    elastic.wrap(*made(net))


def compiled_model():
    model, opt = made()
    elastic.wrap(torch.compile(model), opt)


def compiled_loss():
    """It is compiled before the loop, and called in it."""
    model, opt, _ = elastic.wrap(*made())
    loss = torch.compile(lambda x: x.sum())
    for x in elastic.steps(DataLoader([torch.ones(4)] * 4)):
        loss(model(x)).backward()
        opt.step()


def compiled_later():
    model, _, _ = elastic.wrap(*made())
    model.module.compile()
    model(torch.ones(2, 4))


def graph():
    elastic.wrap(*made())
    torch.cuda.CUDAGraph()


def graphed():
    model, _, _ = elastic.wrap(*made())
    torch.cuda.make_graphed_callables(model.module, (torch.ones(2, 4),))


def loader_state():
    elastic.wrap(*made())
    steps = elastic.steps(DataLoader([torch.ones(4)] * 4))
    for _ in steps:
        steps.state_dict()


def loader_state_loaded():
    elastic.wrap(*made())
    elastic.steps(DataLoader([torch.ones(4)] * 4)).load_state_dict({})


def iterable():
    elastic.wrap(*made())
    for _ in elastic.steps(DataLoader(Endless(), batch_size=None)):
        pass


class Positioned(DataLoader):  # as torchdata's StatefulDataLoader
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def stateful():
    elastic.wrap(*made())
    for _ in elastic.steps(Positioned([torch.ones(4)] * 4)):
        pass


def spawn():
    elastic.wrap(*made())
    data = [torch.ones(4)] * 4
    for _ in elastic.steps(DataLoader(data, num_workers=1, multiprocessing_context="spawn")):
        pass


def collective():
    dist.reduce(torch.ones(2), 0)


def group():
    dist.new_group([0])


def product():
    dist.all_reduce(torch.ones(2), op=dist.ReduceOp.PRODUCT)


def unsaved():
    """A variable that cannot be saved, when the number of processes changes."""
    model, opt, _ = elastic.wrap(*made())
    elastic.local(file=sys.stdin)
    for x in elastic.steps(DataLoader([torch.ones(4)] * 4)):
        model(x).sum().backward()
        opt.step()


def data_set():
    model, opt, _ = elastic.wrap(*made())
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
        opt.step()
        for each in model.parameters():
            each.data = each.data.clone()


def trained(change):
    model, opt, _ = elastic.wrap(*made())
    for number, x in enumerate(elastic.steps(DataLoader([torch.ones(4)] * 4))):
        model(x).sum().backward()
        opt.step()
        if number == dist.get_rank() == 1:
            change()


def deterministic():
    trained(lambda: torch.use_deterministic_algorithms(True))


def precision():
    trained(lambda: torch.set_float32_matmul_precision("medium"))


class Replacing(torch.optim.SGD):
    def step(self, closure=None):
        for each in self.param_groups[0]["params"]:
            each.data = each.data - each.grad


def optimizer_sets_data():
    model, _ = made()
    model, opt, _ = elastic.wrap(model, Replacing(model.parameters(), 0.1))
    model(torch.ones(2, 4)).sum().backward()
    opt.step()


def wrapped_twice():
    model, opt = made()
    elastic.wrap(*elastic.wrap(model, opt))


def made(net=None, **options):
    model = DDP(nn.Linear(4, 4) if net is None else net, **options)
    return model, torch.optim.SGD(model.parameters(), 0.1)


dist.init_process_group("gloo")
globals()[sys.argv[1]]()
