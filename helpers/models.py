"""Models and workloads that several notebooks share."""

import torch
from torch import nn


class SimpleModel(nn.Module):
    """Guide 2's model: two linear layers with a ReLU between, (n, 1024) → (n, 512)."""

    def __init__(self):
        super().__init__()
        self.linear1 = nn.Linear(1024, 2048)
        self.relu = nn.ReLU()
        self.linear2 = nn.Linear(2048, 512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear2(self.relu(self.linear1(x)))
