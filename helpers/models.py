"""Models and data that several notebooks share."""

import torch
from torch import nn

from helpers import machine
from helpers._arguments import Count, Size, checked, quoted


class SimpleModel(nn.Module):
    """Guide 2's model: two linear layers with a ReLU between, (n, 1024) → (n, 512)."""

    def __init__(self):
        super().__init__()
        self.linear1 = nn.Linear(1024, 2048)
        self.relu = nn.ReLU()
        self.linear2 = nn.Linear(2048, 512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear2(self.relu(self.linear1(x)))


@checked
class OptimizedTransformerLayer(nn.Module):
    """Guide 2's transformer layer: (batch, tokens, width) → the same.

    As the guide has it: a new one is in train mode and drops out.
    """

    def __init__(self, d_model: Count, nhead: Count):
        super().__init__()
        _check_size(d_model, nhead)
        self.self_attn = nn.MultiheadAttention(d_model, nhead, batch_first=True)
        self.linear1 = nn.Linear(d_model, d_model * 4)
        self.linear2 = nn.Linear(d_model * 4, d_model)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(0.1)

    def forward(self, src: torch.Tensor) -> torch.Tensor:
        attn_output, _ = self.self_attn(src, src, src, need_weights=False)
        src = self.norm1(src + self.dropout(attn_output))
        ff_output = self.linear2(torch.relu(self.linear1(src)))
        return self.norm2(src + self.dropout(ff_output))


@checked
def transformer(
    layers: Count = 12, width: Count = 512, heads: Count = 8
) -> nn.Sequential:
    """Stack guide 2's layer: (batch, tokens, width) → the same.

    Raises:
        TypeError, ValueError: a number cannot be used, or is too large for the memory.
    """
    _check_size(width, heads, layers)
    return nn.Sequential(
        *(OptimizedTransformerLayer(width, heads) for _ in range(layers))
    )


def _check_size(width: int, heads: int, layers: int = 1) -> None:
    if width % heads:
        raise ValueError(f"{heads} heads, width {width}: give a divisor of the width")
    needed, free = 4 * 12 * width**2 * layers, machine.free_bytes()  # FP32 weights
    if needed > free:
        what = f"{layers} layers of width {width}"
        raise ValueError(f"{what} do not fit: give less than {free:,} bytes of weights")


@checked
def vision(name: str = "resnet50", pretrained: bool = False) -> nn.Module:
    """Make a torchvision classifier: images (n, 3, 224, 224) → scores (n, 1000).

    Args:
        name: such as "resnet50" or "vit_b_16".
        pretrained: download ImageNet's weights; else they are random, and the head,
            which torchvision leaves all zero in "vit_b_16", is random, too.

    Raises:
        ValueError: torchvision has no classifier of that name; the message says which.
    """
    import torchvision

    known = torchvision.models.list_models(module=torchvision.models)
    if name.lower() not in known:
        raise ValueError(f"name={name!r}: give one of {', '.join(known)}")

    model = torchvision.models.get_model(
        name, weights="DEFAULT" if pretrained else None
    )
    if not pretrained:
        linear = [m for m in model.modules() if isinstance(m, nn.Linear)]
        for last in linear[-1:]:  # SqueezeNet has none
            nn.init.normal_(last.weight, std=0.02)
    return model


class DigitsNet(nn.Sequential):
    """A small CNN with batch norm: images (n, 1, 8, 8) → scores (n, 10)."""

    def __init__(self):
        super().__init__()
        channels = (1, 16, 32, 32)
        for i, (ins, outs) in enumerate(zip(channels, channels[1:], strict=False), 1):
            self.add_module(f"conv{i}", nn.Conv2d(ins, outs, 3, padding=1))
            self.add_module(f"norm{i}", nn.BatchNorm2d(outs))
            self.add_module(f"relu{i}", nn.ReLU())
        self.pool = nn.MaxPool2d(2)
        self.flatten = nn.Flatten()
        self.linear = nn.Linear(32 * 4 * 4, 10)


def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Load 1,797 handwritten digits, real data that comes with scikit-learn.

    Returns:
        Training images and labels (the first 1,000 in a fixed shuffled order), test
        images and labels (the other 797): images (n, 1, 8, 8) in FP32 from 0 to 1,
        labels (n,) from 0 to 9, on the CPU.

    Source: UCI, "Optical Recognition of Handwritten Digits".
    """
    from sklearn.datasets import load_digits

    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(data.images, dtype=torch.float32)[order, None] / 16
    labels = torch.tensor(data.target)[order]
    return images[:1000], labels[:1000], images[1000:], labels[1000:]


@checked
def train(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, epochs: Size = 6
) -> nn.Module:
    """Train a classifier by Adam, batches of 50, in FP32; return it in eval mode.

    Args:
        images, labels: (n, …) and (n,), on the model's device.
        epochs: passes through the data, in an order that is the same each time.

    Raises:
        TypeError, ValueError: an argument cannot be used; the message quotes it.
        RuntimeError, IndexError: the model cannot take the images, or has no score for
            a label.
    """
    if (
        labels.dtype != torch.int64
        or labels.shape != images.shape[:1]
        or not labels.dim()
    ):
        raise ValueError(
            f"labels={quoted(labels)}: give an int64 label to each of the images, "
            f"which are {tuple(images.shape)}"
        )
    if not any(True for _ in model.parameters()):
        raise ValueError(f"model={quoted(model)}: give one with parameters to train")
    order = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    model.train()
    for _ in range(epochs):
        shuffled = torch.randperm(len(images), generator=order)
        for batch in shuffled.to(images.device).split(50):
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.eval()
