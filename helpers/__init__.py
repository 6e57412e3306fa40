"""Companion package of the notebooks: measure, decode, draw and judge.

Import what a cell needs: ``from helpers import compare, formats, plots``. Nothing is
loaded before it is asked for, so ``import helpers`` costs no torch and no matplotlib.
"""

import importlib

__version__ = "0.1.0"

MODULES = (
    "claims",
    "comparing",
    "compiling",
    "exercises",
    "explorers",
    "formats",
    "graphs",
    "machine",
    "models",
    "optimizing",
    "plots",
    "probing",
    "records",
    "roofline",
    "switches",
)
SHORTCUTS = {
    "check": "exercises",
    "compare": "comparing",
    "explore": "explorers",
}

__all__ = [*MODULES, *SHORTCUTS]


def __getattr__(name: str):
    """Load a submodule, or the one function that carries its own name, on first use."""
    if name in MODULES:
        return importlib.import_module(f"helpers.{name}")
    if name in SHORTCUTS:
        return getattr(importlib.import_module(f"helpers.{SHORTCUTS[name]}"), name)
    raise AttributeError(f"module 'helpers' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
