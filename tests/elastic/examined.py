"""Prints as JSON what rankfold.elastic.eligible says of two models."""

import json
import random

import torch
from torch import nn

import rankfold.elastic as elastic
from rankfold.elastic.errors import NotSupported


@torch.library.custom_op("another::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


class Doubled(nn.Module):
    def forward(self, x):
        return x + doubled(x.detach())


net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.GELU(), nn.Dropout(), Doubled())
before = {name: each.clone() for name, each in net.state_dict().items()}
torch.manual_seed(3)
random.seed(3)
images = elastic.eligible(net, torch.ones(2, 3, 8, 8))
drawn = torch.rand(1).item(), random.random()
torch.manual_seed(3)
random.seed(3)
assert drawn == (torch.rand(1).item(), random.random())
assert all(torch.equal(each, before[name]) for name, each in net.state_dict().items())
linear = nn.Sequential(nn.Embedding(9, 256), nn.Dropout(), nn.Linear(256, 256), nn.ReLU())
words = elastic.eligible(linear, torch.randint(9, (64,)), at_most=1e9)
refused = []
for model, at_most in ((nn.Linear(4, 4, device="meta"), 1.0), ("net", 1.0), (nn.Linear(4, 4), "x")):
    try:
        elastic.eligible(model, torch.ones(4), at_most=at_most)
    except NotSupported as error:
        refused.append(str(error))
found = {"images": images, "words": words}
texts = {name: str(each) for name, each in found.items()}
kinds = {name: {"mixes": each.mixes, **each._asdict()} for name, each in found.items()}
print(json.dumps({**kinds, "texts": texts, "refused": refused}))
