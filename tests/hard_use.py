"""Use the notebooks badly, and say what breaks; not part of the ordinary tests.

python tests/hard_use.py [NOTEBOOK ...]: in one kernel each, all cells in order, then in
order again, and from the last to the first. Prints the cells that fail, the switches
that are not as before, and the memory of the kernel after each pass. Then interrupts
calls of the helpers at random times (--interrupts N of each kind, 0 for none).
"""

import argparse
import collections
import os
import random
import signal
import sys
import time
from pathlib import Path

import nbclient
import nbformat

REPOSITORY = Path(__file__).resolve().parents[1]
os.environ["PYTHONPATH"] = str(REPOSITORY)  # for the kernels
sys.path.insert(0, str(REPOSITORY))
LOOK = """
import os as _os, sys as _sys, torch as _torch
from helpers import switches as _switches
_pages = int(open("/proc/self/statm").read().split()[1])
_modes = [_torch.is_grad_enabled(), _torch.is_inference_mode_enabled()]
_sizes = f"{_pages * _os.sysconf('SC_PAGE_SIZE') >> 20} MiB of the host"
if _torch.cuda.is_available():
    _sizes += f", {_torch.cuda.memory_allocated() >> 20} MiB of the GPU"
print(_switches.state(), _modes, _torch.get_default_dtype(), _sizes, sep="|")
"""


def main():
    """Use each notebook, then the helpers; return how many things broke."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebooks", nargs="*", type=Path, metavar="NOTEBOOK")
    parser.add_argument("--interrupts", type=int, default=20, metavar="N")
    options = parser.parse_args()
    broken = 0
    for path in options.notebooks:
        broken += use(path)
    if options.interrupts:
        broken += interrupt(options.interrupts)
    print(f"{broken} broken")
    return min(broken, 1)


def use(path):
    """Run a notebook's cells in three orders; return how many times something broke."""
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": str(path.parent)}}
    )
    cells = [
        (index, cell)
        for index, cell in enumerate(notebook.cells)
        if cell.cell_type == "code"
        and "nbval-skip" not in cell.metadata.get("tags", [])
    ]
    broken, before = 0, None
    with client.setup_kernel():
        looking = nbformat.v4.new_code_cell(LOOK)
        for order in (cells, cells, cells[::-1]):
            start = time.perf_counter()
            for index, cell in order:
                try:
                    client.execute_cell(cell, index)
                except nbclient.exceptions.CellExecutionError as error:
                    broken += 1
                    print(f"{path.name}, cell {index}: {error.ename}: {error.evalue}")
            *found, sizes = client.execute_cell(looking, 0).outputs[-1].text.split("|")
            before = before or found
            if found != before:
                broken += 1
                print(f"{path.name}: the switches were {before}, are {found}")
            seconds = time.perf_counter() - start
            print(f"{path.name}: {seconds:.0f} s, {sizes.strip()}", flush=True)
    return broken


def interrupt(times):
    """Interrupt calls at random times; return how often they left a switch changed."""
    import torch
    from torch import nn

    from helpers import compare, optimizing, switches

    model, x = nn.Sequential(nn.Linear(64, 64), nn.ReLU()), torch.randn(8, 64)
    plan = optimizing.Plan("TF32", cudnn_benchmark=True, fast_path=False)
    run = optimizing.apply(plan, model)

    def switching():
        for _ in range(20):
            with switches.tf32(True, False), switches.cudnn_benchmark(True):
                time.sleep(0.005)

    kinds = {
        "switches": switching,
        "a plan's calls": lambda: [run(x) for _ in range(500)],
        "compare": lambda: compare({"a": lambda: model(x), "b": lambda: model(x)}),
        "search": lambda: optimizing.search(model, x, progress=False),
    }

    def raise_interrupt(*_):
        raise KeyboardInterrupt

    def look():
        modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        return (
            switches.state(),
            *modes,
            torch.is_autocast_enabled("cpu"),
            model.training,
        )

    signal.signal(signal.SIGALRM, raise_interrupt)
    before, broken = look(), 0
    for name, call in kinds.items():
        start = time.perf_counter()
        call()
        seconds, ends = time.perf_counter() - start, collections.Counter()
        for _ in range(times):
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-4, seconds))
            try:
                result = call()
                ends["kept" if getattr(result, "interrupted", False) else "ended"] += 1
            except KeyboardInterrupt:
                ends["raised"] += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            if look() != before:
                broken += 1
                print(f"{name}: the switches were {before}, are {look()}")
                return broken
        print(f"{name}, interrupted {times} times: {dict(ends)}", flush=True)
    return broken


if __name__ == "__main__":
    sys.exit(main())
