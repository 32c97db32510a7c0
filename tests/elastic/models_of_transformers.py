"""Models of transformers, small and from random weights, as models.py trains them."""

import torch
import transformers
from torch import nn

WORDS, LENGTH, CLASSES, SIDE = 48, 12, 5, 32
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": WORDS,
    "num_labels": CLASSES,
}


class Texts(nn.Module):
    """Classification of texts of several lengths, padded."""

    def loss(self, item):
        words, attended, labels = item
        return self.model(input_ids=words, attention_mask=attended, labels=labels).loss

    @staticmethod
    def sample(index):
        attended = (torch.arange(LENGTH) < LENGTH - index % 4).long()
        return torch.randint(WORDS, (LENGTH,)), attended, index % CLASSES


class Bert(Texts):
    def __init__(self):
        super().__init__()
        config = transformers.BertConfig(**SMALL)
        self.model = transformers.BertForSequenceClassification(config)


class Electra(Texts):
    def __init__(self):
        super().__init__()
        config = transformers.ElectraConfig(embedding_size=16, **SMALL)
        self.model = transformers.ElectraForSequenceClassification(config)


class Images(nn.Module):
    def loss(self, item):
        pixels, labels = item
        return self.model(pixel_values=pixels, labels=labels).loss

    @staticmethod
    def sample(index):
        return torch.randn(3, SIDE, SIDE) + index % CLASSES, index % CLASSES


class Swin(Images):
    """Shifted windows, with random depth."""

    def __init__(self):
        super().__init__()
        config = transformers.SwinConfig(
            image_size=SIDE,
            embed_dim=16,
            depths=[2, 1],
            num_heads=[2, 4],
            window_size=4,
            drop_path_rate=0.2,
            num_labels=CLASSES,
        )
        self.model = transformers.SwinForImageClassification(config)


class ResNet(Images):
    def __init__(self):
        super().__init__()
        config = transformers.ResNetConfig(
            embedding_size=8, hidden_sizes=[16, 32], depths=[1, 1], num_labels=CLASSES
        )
        self.model = transformers.ResNetForImageClassification(config)


MODELS = (Bert, Electra, Swin, ResNet)
