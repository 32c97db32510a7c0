"""Trains small models of usual kinds, one after the other. Prints losses, and a digest of
parameters, buffers and the optimizer's state after each step.

Usage: models.py [FOLDER]. With a folder that has transformers: models of that."""

import hashlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import rankfold.elastic as elastic

EPOCHS, BATCHES, SIZE = 2, 3, 4


class NeuMF(nn.Module):
    """Matrix factorisation and a perceptron over embeddings of users and items."""

    def __init__(self, users=50, items=40, width=8):
        super().__init__()
        self.factors = nn.ModuleList(nn.Embedding(n, width) for n in (users, items))
        self.embedded = nn.ModuleList(nn.Embedding(n, width) for n in (users, items))
        self.layers = nn.Sequential(nn.Linear(2 * width, 16), nn.ReLU(), nn.Dropout(0.1))
        self.head = nn.Linear(16 + width, 1)

    def loss(self, item):
        pairs, label = item
        user, thing = pairs.unbind(1)
        product = self.factors[0](user) * self.factors[1](thing)
        both = torch.cat([self.embedded[0](user), self.embedded[1](thing)], 1)
        score = self.head(torch.cat([product, self.layers(both)], 1))[:, 0]
        return F.binary_cross_entropy_with_logits(score, label)

    @staticmethod
    def sample(index):
        return torch.tensor([index % 50, index * 7 % 40]), torch.tensor(float(index % 3 == 0))


class Images:
    """Classification of noisy images."""

    def loss(self, item):
        images, labels = item
        return F.cross_entropy(self.logits(images), labels)

    @staticmethod
    def sample(index):
        return torch.randn(3, 16, 16) + index % 5, index % 5


class VGG(Images, nn.Module):
    def __init__(self):
        super().__init__()
        layers, width = [], 3
        for each in (8, 16):
            layers += [nn.Conv2d(width, each, 3, padding=1), nn.BatchNorm2d(each), nn.ReLU()]
            layers += [nn.MaxPool2d(2)]
            width = each
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(width * 16, 32), nn.ReLU(), nn.Dropout(), nn.Linear(32, 5)
        )

    def logits(self, images):
        return self.classifier(self.features(images).flatten(1))


class Shuffled(nn.Module):
    """A block of ShuffleNetV2: half of the channels pass, then the halves are mixed."""

    def __init__(self, width):
        super().__init__()
        half = width // 2
        self.branch = nn.Sequential(
            *(nn.Conv2d(half, half, 1, bias=False), nn.BatchNorm2d(half), nn.ReLU()),
            *(nn.Conv2d(half, half, 3, padding=1, groups=half), nn.BatchNorm2d(half)),
            *(nn.Conv2d(half, half, 1, bias=False), nn.BatchNorm2d(half), nn.ReLU()),
        )

    def forward(self, x):
        passed, worked = x.chunk(2, 1)
        both = torch.stack([passed, self.branch(worked)], 2)
        return both.flatten(1, 2)


class ShuffleNet(Images, nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.blocks = nn.Sequential(Shuffled(16), Shuffled(16))
        self.head = nn.Linear(16, 5)

    def logits(self, images):
        return self.head(self.blocks(self.stem(images)).mean((2, 3)))


class Language(nn.Module):
    """An LSTM that predicts the next character."""

    def __init__(self, characters=20, width=24):
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        self.lstm = nn.LSTM(width, width, 2, batch_first=True, dropout=0.2)
        self.head = nn.Linear(width, characters)

    def loss(self, text):
        found, _ = self.lstm(self.embedding(text[:, :-1]))
        return F.cross_entropy(self.head(found).flatten(0, 1), text[:, 1:].flatten())

    @staticmethod
    def sample(index):
        return (torch.arange(12) * (1 + index % 4) + torch.randint(3, (12,))) % 20


class Transformer(nn.Module):
    """A GPT with tied embeddings and causal attention."""

    def __init__(self, characters=20, width=24, length=11):
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        self.places = nn.Parameter(torch.zeros(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 48, 0.1, "gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.register_buffer("mask", torch.full((length, length), float("-inf")).triu(1))

    def loss(self, text):
        x = self.embedding(text[:, :-1]) + self.places
        found = self.layers(x, mask=self.mask, is_causal=True) @ self.embedding.weight.t()
        return F.cross_entropy(found.flatten(0, 1), text[:, 1:].flatten())

    sample = Language.sample


class Detector(nn.Module):
    """A box and its class per cell of an image; only cells with an object count."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(3, 12, 3, stride=2, padding=1), nn.BatchNorm2d(12), nn.LeakyReLU(0.1)),
            *(nn.Conv2d(12, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.LeakyReLU(0.1)),
        )
        self.dropout = nn.Dropout2d(0.1)
        self.boxes, self.classes = nn.Conv2d(16, 4, 1), nn.Conv2d(16, 3, 1)

    def loss(self, item):
        images, cells, boxes, labels = item
        found = self.dropout(self.body(images))
        places = (torch.arange(len(images)), slice(None), cells[:, 0], cells[:, 1])
        box = F.smooth_l1_loss(self.boxes(found)[places], boxes)
        return box + F.cross_entropy(self.classes(found)[places], labels)

    @staticmethod
    def sample(index):
        cell = torch.randint(4, (2,))
        return torch.randn(3, 16, 16), cell, torch.rand(4), index % 3


class Samples(Dataset):
    def __init__(self, sample):
        self.sample = sample

    def __len__(self):
        return SIZE * BATCHES * dist.get_world_size()

    def __getitem__(self, index):
        return self.sample(index)


def digest(model, opt):
    found = hashlib.sha256()
    state = [each for p in model.parameters() for _, each in sorted(opt.state[p].items())]
    for tensor in (*model.parameters(), *model.buffers(), *state):
        if isinstance(tensor, torch.Tensor):
            found.update(tensor.detach().numpy().tobytes())
    return found.hexdigest()[:16]


class Loss(nn.Module):
    """Its forward pass is the loss, so that DistributedDataParallel runs all of the model."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, item):
        return self.net.loss(item)


def train(kind):
    net = kind()
    model = DDP(Loss(net), bucket_cap_mb=0.01)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, EPOCHS * BATCHES)
    model, opt, sched = elastic.wrap(model, opt, sched)
    data = Samples(kind.sample)
    sampler = DistributedSampler(data, seed=3)
    loader = DataLoader(data, batch_size=SIZE, sampler=sampler)
    for epoch in elastic.epochs(EPOCHS):
        sampler.set_epoch(epoch)
        for number, item in enumerate(elastic.steps(loader)):
            opt.zero_grad()
            loss = model(item)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            values = loss.item().hex(), norm.item().hex(), digest(model, opt)
            print(kind.__name__, epoch, number, *values)


dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
kinds = (NeuMF, VGG, ShuffleNet, Language, Detector, Transformer)
if sys.argv[1:]:
    sys.path.append(sys.argv[1])
    from models_of_transformers import MODELS as kinds
for each in kinds:
    train(each)
