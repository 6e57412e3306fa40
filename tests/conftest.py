"""What all tests share: `helpers` found in a plain clone, GPU tests skipped without."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))


def pytest_collection_modifyitems(items):
    """Skip what needs an NVIDIA GPU on machines without one."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))
