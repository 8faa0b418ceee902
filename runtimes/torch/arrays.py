"""Numpy arrays as tensors and back, bit by bit."""

from typing import Any

import numpy as np
import torch

from runtimes.arrays import Array, dtype_of


def to_torch(array: Array) -> Any:
    """Returns a tensor of the same bits; numpy and torch have no bfloat16 in common."""
    array = np.ascontiguousarray(array)
    if array.dtype == dtype_of("bfloat16"):
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_numpy(tensor: Any) -> Array:
    """Returns an array of the same bits."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        return np.asarray(tensor.view(torch.int16).numpy().view(dtype_of("bfloat16")))
    return np.asarray(tensor.numpy())
