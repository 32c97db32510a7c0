"""Fails where a name of PyTorch's that elastic/private.py uses has another meaning than there."""

import contextlib
import random
import warnings

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, get_worker_info

from rankfold.elastic import context, private


class Drawn(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return random.random(), float(np.random.rand()), torch.rand(2), get_worker_info().seed


class Group(dist.ProcessGroup):
    def size(self):
        return 3

    def rank(self):
        return 2


def worlds():
    """The default group of torch.distributed is a part of the world."""
    stock = private.world()
    assert dist.is_initialized()
    private.set_world(private.own_world())
    assert not dist.is_initialized()
    group = Group(2, 3)
    private.set_default(group, "name")
    assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (2, 3, "gloo")
    private.unset_default()
    assert not dist.is_initialized()
    private.set_world(stock)
    assert dist.get_world_size() == 1


def futures():
    future = torch.futures.Future()
    work = private.finished(future)
    assert not work.is_completed()
    future.set_result([torch.ones(1)])
    assert work.wait()
    assert work.is_completed()


def end_of_backward():
    assert not private.at_end_of_backward(lambda: None)
    x = torch.ones(2, requires_grad=True)
    called = []

    def hook(gradient):
        private.at_end_of_backward(lambda: called.append(x.grad is not None))

    x.register_hook(hook)
    (2 * x).sum().backward()
    assert called == [True]


def schedulers():
    opt = torch.optim.SGD([torch.ones(1, requires_grad=True)], 0.1)
    assert not private.scheduled(opt.step)
    sched = torch.optim.lr_scheduler.StepLR(opt, 1)
    assert private.scheduled(opt.step)
    stock = opt.step
    opt.step = lambda: stock()
    private.mark_scheduled(opt.step)
    private.mark_stepped(opt)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sched.step()


def model():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    return DDP(net, bucket_cap_mb=0.00007)


def backward(each):
    each(torch.ones(2, 4)).sum().backward()


def sizes(each):
    return each._get_ddp_logging_data()["bucket_sizes"]


def buckets():
    """They are arranged once; a new reducer has those that it is given, and reduces into them."""
    stock = model()
    assert not private.has_hooks(stock)
    backward(stock)
    before = sizes(stock)
    private.arrange_buckets(stock)
    assert stock._has_rebuilt_buckets
    assert not stock.reducer._rebuild_buckets(), "it arranges once"
    backward(stock)
    other = model()
    private.use_buckets(other, [[3], [1, 2], [0]])
    assert sizes(other) == "16, 80, 64", sizes(other)
    assert before != sizes(other)
    other.zero_grad()
    backward(other)
    assert all(each.grad is not None for each in other.parameters())
    stock.register_comm_hook(None, lambda state, bucket: None)
    assert private.has_hooks(stock)
    assert private.joins(stock) is False
    with stock.join():
        assert private.joins(stock) is True


class Tripled(Group):
    """Keeps the tensors that it gets, and gives three times their values instead. Their memory is
    taken at the end of the backward pass, with that of the gradients."""

    def __init__(self):
        super().__init__(0, 1)
        self.tensors, self.works, self.gradients = [], [], []

    def size(self):
        return 1

    def allreduce(self, tensors, options=None):
        future = torch.futures.Future()
        future.set_result([3 * tensors[0]])
        self.tensors += tensors
        self.works.append(private.finished(future))
        if len(self.tensors) == 1:
            assert private.at_end_of_backward(self.end)
        return self.works[-1]

    def end(self):
        storages = [each.untyped_storage() for each in (*self.tensors, *self.gradients)]
        sizes = [each.nbytes() for each in storages]
        for each in storages:
            each.resize_(0)
        for each, size in zip(
            storages[len(self.tensors) :], sizes[len(self.tensors) :], strict=True
        ):
            each.resize_(size)


def reducers():
    """One calls the group that it was given, copies the values of its Works to the gradients,
    whatever these contain, and does not use buckets until the next forward pass."""
    begun = []
    private.before_forward(begun.append)
    layer = nn.Linear(100, 100, bias=False)
    stock, group = DDP(layer), Tripled()
    private.reduce_with(stock, group)
    group.gradients = [torch.zeros(100, 100)]
    layer.weight.grad = group.gradients[0]
    output = stock.forward(torch.ones(2, 100)).sum()
    assert begun == [stock]
    output.backward(retain_graph=True)
    assert torch.equal(layer.weight.grad, torch.full((100, 100), 6.0))
    assert layer.weight.grad is group.gradients[0]
    assert [each.untyped_storage().nbytes() for each in group.tensors] == [0]
    output.backward()
    assert torch.equal(layer.weight.grad, torch.full((100, 100), 8.0))
    assert len(group.tensors) == 1, "it reduces once per forward pass"
    array = torch.zeros(100)
    array.numpy()
    assert not array.untyped_storage().resizable()


def compiled():
    net = nn.Sequential(nn.Linear(2, 2))
    assert not private.is_compiled(net)
    net[0].compile()
    assert private.is_compiled(net)
    assert private.is_compiled(nn.Sequential(torch.compile(nn.Linear(2, 2))))


def graphs():
    """The CPU build has none, but its classes."""
    used = []
    private.refuse_graphs(used.append)
    double = torch.compile(backend="eager")(lambda x: 2 * x)
    assert used == []
    assert double(torch.ones(1)).item() == 2
    assert torch.compile(nn.Linear(2, 2), disable=True)(torch.ones(2)).numel() == 2
    torch.compile(nn.Linear(2, 2), backend="eager")
    assert used == 2 * ["torch.compile"]
    for kind in (torch.cuda.CUDAGraph, torch.accelerator.Graph):
        with contextlib.suppress(RuntimeError):
            kind()
    assert used[2:] == 2 * ["CUDA graphs"]


def loaders():
    """A data worker has the seeds, and a pass the indices, of a stock DataLoader."""
    loader = DataLoader(Drawn(), batch_size=2, shuffle=True, num_workers=2)
    torch.manual_seed(1)
    stock = list(loader)
    torch.manual_seed(1)
    iterator = private.loader_iterator(loader)
    indices = list(private.indices(iterator))
    assert sorted(map(len, indices)) == [2, 2]
    for number, batch in enumerate(stock):
        private.start_data_worker(iterator, number)
        mine = private.fetcher(iterator).fetch(indices[number])
        assert all(map(torch.equal, mine, batch))
    seed = private.seed(iterator)
    private.restart(iterator, loader)
    assert private.seed(iterator) == seed
    assert len(list(private.indices(iterator))) == 2
    private.set_seed(iterator, 3)
    assert private.start_data_worker(iterator, 1).seed == 4
    private.set_data_worker(None)
    assert get_worker_info() is None
    for warns in (1, 0):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            DataLoader(Drawn(), num_workers=10**6)
        assert len(found) == warns
        private.allow_data_workers()


def exceptions():
    """One is raised with its type in another place."""
    try:
        raise KeyError("name")
    except KeyError:
        wrapped = private.ExceptionWrapper(where="there")
    try:
        wrapped.reraise()
    except KeyError as error:
        assert "there" in str(error)
    else:
        raise AssertionError


def modules():
    assert {"training", "_parameters", "_buffers", "_modules"} <= private.MODULE
    assert "weight" not in private.MODULE


dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
checks = (
    worlds,
    futures,
    end_of_backward,
    schedulers,
    buckets,
    reducers,
    compiled,
    graphs,
    loaders,
    exceptions,
    modules,
)
for check in checks:
    saved = context.save()
    check()
    context.load(saved)
print(*(check.__name__ for check in checks))
