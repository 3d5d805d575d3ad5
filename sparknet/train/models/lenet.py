"""Caffe's LeNet (examples/mnist), for RGB input.

Layers, fillers and solver settings are those that Caffe publishes; its 28x28 grey input has become (3, crop, crop).
"""

import torch
from torch import nn

from sparknet.train.config import SolverConfig, TrainConfig
from sparknet.train.models.caffe_layers import double_rate_for_biases, xavier

PUBLISHED = TrainConfig(
    net="lenet",
    crop=28,
    batch=64,
    solver=SolverConfig(base_lr=0.01, momentum=0.9, weight_decay=0.0005, policy="inv", gamma=0.0001, power=0.75),
    mean="none",
    scale=1 / 256,
)


class LeNet(nn.Module):
    """The network.

    Args:
        classes: number of outputs.
        crop: height and width of the input, pixels; at least 13.

    Raises:
        ValueError: crop is below 13.
    """

    def __init__(self, classes: int, crop: int) -> None:
        super().__init__()
        if crop < 13:
            raise ValueError(f"crop must be at least 13 for two convolutions and poolings, got {crop}")
        self.conv1 = nn.Conv2d(3, 20, 5)
        self.conv2 = nn.Conv2d(20, 50, 5)
        self.pool = nn.MaxPool2d(2, 2, ceil_mode=True)
        side = ((crop - 4 + 1) // 2 - 4 + 1) // 2
        self.ip1 = nn.Linear(50 * side * side, 500)
        self.ip2 = nn.Linear(500, classes)
        for layer in (self.conv1, self.conv2, self.ip1, self.ip2):
            xavier(layer)
        self.multipliers = double_rate_for_biases(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, 3, crop, crop) to (n, classes)."""
        x = self.pool(self.conv1(x))
        x = self.pool(self.conv2(x))
        x = torch.relu(self.ip1(x.flatten(1)))
        scores: torch.Tensor = self.ip2(x)
        return scores
