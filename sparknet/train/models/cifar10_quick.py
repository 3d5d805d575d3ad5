"""Caffe's cifar10_quick: three convolutions and two inner products, 145,578 parameters for 10 classes.

Layers, fillers and solver settings are those that Caffe publishes in its examples/cifar10.
"""

import torch
from torch import nn

from sparknet.train.config import SolverConfig, TrainConfig
from sparknet.train.models.caffe_layers import double_rate_for_biases, gaussian

PUBLISHED = TrainConfig(
    net="cifar10_quick",
    crop=32,
    batch=100,
    solver=SolverConfig(base_lr=0.001, momentum=0.9, weight_decay=0.004, policy="fixed"),
)


class Cifar10Quick(nn.Module):
    """The network.

    Args:
        classes: number of outputs.
        crop: height and width of the input, pixels; at least 8.

    Raises:
        ValueError: crop is below 8.
    """

    channels_last = True  # pooling in NCHW is slow on a CPU: a whole step takes 1.5 times as long

    def __init__(self, classes: int, crop: int) -> None:
        super().__init__()
        if crop < 8:
            raise ValueError(f"crop must be at least 8 for three poolings, got {crop}")
        self.conv1 = nn.Conv2d(3, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 32, 5, padding=2)
        self.conv3 = nn.Conv2d(32, 64, 5, padding=2)
        # Caffe rounds the size after pooling up. With no padding, its average divides by the part of the window that
        # lies within the image, as torch's does.
        self.max_pool = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.average_pool = nn.AvgPool2d(3, 2, ceil_mode=True)
        side = crop
        for _ in range(3):
            side = side // 2
        self.ip1 = nn.Linear(64 * side * side, 64)
        self.ip2 = nn.Linear(64, classes)
        for layer, std in (
            (self.conv1, 1e-4),
            (self.conv2, 0.01),
            (self.conv3, 0.01),
            (self.ip1, 0.1),
            (self.ip2, 0.1),
        ):
            gaussian(layer, std)
        self.multipliers = double_rate_for_biases(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, 3, crop, crop) to (n, classes). The first ReLU comes after its pooling, as published."""
        x = x.contiguous(memory_format=torch.channels_last)
        x = torch.relu(self.max_pool(self.conv1(x)))
        x = self.average_pool(torch.relu(self.conv2(x)))
        x = self.average_pool(torch.relu(self.conv3(x)))
        scores: torch.Tensor = self.ip2(self.ip1(x.flatten(1)))
        return scores
