"""Make ``pytest --nbval notebooks`` need no other option, from any directory."""

import os
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
NBVAL_TIMEOUT_S = 2000  # nbval's own default
CELL_TIMEOUT_S = 120


def pytest_configure(config):
    """Set up the kernels before the first of them starts."""
    make_helpers_importable()
    if config.getoption("nbval", False) or config.getoption("nbval_lax", False):
        choose_defaults(config.option)


def make_helpers_importable():
    """Let tests and kernels import ``helpers`` from a clone that nobody installed."""
    if str(REPOSITORY) not in sys.path:
        sys.path.insert(0, str(REPOSITORY))
    # A kernel is a new process, started in the notebook's folder.
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(REPOSITORY) not in paths:
        paths.insert(0, str(REPOSITORY))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


def choose_defaults(option):
    """Change nbval's options where the command line says nothing."""
    if option.nbval_cell_timeout == NBVAL_TIMEOUT_S:
        # nbval learns of a dead kernel only when the time is up.
        option.nbval_cell_timeout = CELL_TIMEOUT_S
    if not option.nbval_kernel_name:
        # The kernel that a notebook names may belong to another environment.
        option.nbval_current_env = True


def pytest_collectstart(collector):
    """Leave stderr uncompared: compilers and loggers write the time of day there."""
    if hasattr(collector, "skip_compare"):  # nbval's collectors alone have it
        collector.skip_compare += ("stderr",)
