"""Ranks that train models of transformers, small and from random weights, with plain DDP.

Usage: models.py ROUNDS [NAME …]. Each model prints one line per rank and round: its name, the loss
of the last step and a hash of its parameters and buffers.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
import transformers as t
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 4
BATCH, LENGTH, WORDS, CLASSES, SIDE = 2, 12, 48, 5, 32
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}

rank = int(os.environ["RANK"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))


def bert() -> nn.Module:
    return t.BertForMaskedLM(t.BertConfig(vocab_size=WORDS, **SMALL))


def gpt2() -> nn.Module:
    return t.GPT2LMHeadModel(
        t.GPT2Config(
            vocab_size=WORDS, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
        )
    )


def llama() -> nn.Module:
    return t.LlamaForCausalLM(t.LlamaConfig(vocab_size=WORDS, num_key_value_heads=1, **SMALL))


def vit() -> nn.Module:
    config = t.ViTConfig(image_size=SIDE, patch_size=8, num_labels=CLASSES, **SMALL)
    return t.ViTForImageClassification(config)


def resnet() -> nn.Module:
    config = t.ResNetConfig(
        embedding_size=8, hidden_sizes=[16, 32], depths=[1, 1], num_labels=CLASSES
    )
    return t.ResNetForImageClassification(config)


def text(generator: torch.Generator) -> dict[str, Tensor]:
    words = torch.randint(WORDS, (BATCH, LENGTH), generator=generator)
    attended = torch.ones(BATCH, LENGTH, dtype=torch.long)
    attended[0, LENGTH // 2 :] = 0  # the first text is shorter, and padded
    return {
        "input_ids": words,
        "attention_mask": attended,
        "labels": words.masked_fill(attended == 0, -100),
    }


def images(generator: torch.Generator) -> dict[str, Tensor]:
    pixels = torch.randn(BATCH, 3, SIDE, SIDE, generator=generator)
    return {
        "pixel_values": pixels,
        "labels": torch.randint(CLASSES, (BATCH,), generator=generator),
    }


MODELS: dict[Callable[[], nn.Module], Callable[[torch.Generator], dict[str, Tensor]]] = {
    bert: text,
    gpt2: text,
    llama: text,
    vit: images,
    resnet: images,
}


def train(
    make: Callable[[], nn.Module], batch: Callable[[torch.Generator], dict[str, Tensor]]
) -> str:
    torch.manual_seed(1)
    module = make().to(device).train()
    torch.manual_seed(2 + rank)  # each rank's dropout is its own
    model = DistributedDataParallel(module)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    generator = torch.Generator().manual_seed(100 + rank)
    loss = torch.zeros(())
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(**{name: each.to(device) for name, each in batch(generator).items()}).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    state = hashlib.sha256()
    for each in module.state_dict().values():
        state.update(each.cpu().numpy().tobytes())
    return f"{float(loss.detach()).hex()} {state.hexdigest()}"


def main() -> None:
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    for _ in range(int(sys.argv[1])):
        for make, batch in MODELS.items():
            if not sys.argv[2:] or make.__name__ in sys.argv[2:]:
                print(make.__name__, train(make, batch), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
