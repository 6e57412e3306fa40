"""Measure `optimizing.search` on seven workloads; needs a CUDA GPU.

python tests/benchmark_search.py [--save] [WORKLOAD ...]: all where none is named, in
about ten minutes. Each is compared, in turns, with PyTorch as it comes, with plain
torch.compile, and with guide 1's recipe: BF16, cudnn.benchmark, torch.compile.
"--save" stores the results in helpers/reference, where chapter 10 finds them.
"""

import argparse
import copy
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from helpers import (
    compare,
    compiling,
    machine,
    models,
    optimizing,
    records,
    roofline,
    switches,
)

MAX_ERROR = 2e-2  # relative, against FP32 with TF32 off
WORKLOADS = {  # name → (model, shape of the input)
    "SimpleModel-32": (models.SimpleModel, (32, 1024)),
    "transformer-1": (models.transformer, (1, 512, 512)),
    "transformer-32": (models.transformer, (32, 512, 512)),
    "ResNet-50-1": (lambda: models.vision("resnet50"), (1, 3, 224, 224)),
    "ResNet-50-64": (lambda: models.vision("resnet50"), (64, 3, 224, 224)),
    "ViT-B-16-1": (lambda: models.vision("vit_b_16"), (1, 3, 224, 224)),
    "ViT-B-16-64": (lambda: models.vision("vit_b_16"), (64, 3, 224, 224)),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    unknown = set(options.workloads) - set(WORKLOADS)
    if unknown:
        parser.error(f"{unknown}: give some of {list(WORKLOADS)}")
    if machine.detect().device != "cuda":
        parser.error("there is no CUDA GPU here")
    peaks = roofline.measure_peaks()
    for name in options.workloads or WORKLOADS:
        row = measure(name, peaks)
        if options.save:
            records.save(f"10/bench-{name}", row, records.FOLDER)


def measure(name, peaks):
    """Search one workload, race the result; return a row of plain numbers and words."""
    torch.manual_seed(0)
    make, shape = WORKLOADS[name]
    model, x = make().cuda().eval(), torch.randn(*shape, device="cuda")
    found = optimizing.search(model, x, MAX_ERROR, max_seconds=85, progress=False)
    print(f"{name}: {found.seconds:.0f} s of search", found, found.final, sep="\n")
    bf16 = copy.deepcopy(model).bfloat16()
    recipe = copy.deepcopy(model).bfloat16()
    right = optimizing.apply(optimizing.Plan(), model)(x)
    # As the recipe sets it, for the program.
    with compiling.fresh(), compiling.quiet(), switches.cudnn_benchmark(True):
        plain, recipe = torch.compile(model), torch.compile(recipe)
        best = optimizing.apply(found.best, model)
        variants = {
            "eager": lambda: model(x),
            "torch.compile": lambda: plain(x),
            "recipe": lambda: recipe(x.bfloat16()),
            "BF16 eager": lambda: bf16(x.bfloat16()),
            "search": lambda: best(x),
        }
        if found.best.graph:
            graph = best.in_place(x)
            variants["in place"] = lambda: graph.replay()[0]
        race = compare(variants, right)
    print(race, flush=True)
    took = race["search"].median_s
    row = {"plan": str(found.best), "search_s": found.seconds}
    row |= {f"{which} ms": 1e3 * race[which].median_s for which in race}
    for which in ("eager", "torch.compile", "recipe", "BF16 eager"):
        ratio = race.speedup("search", over=which)
        row[f"over {which}"] = ratio.median
        row[f"over {which}, from"], row[f"over {which}, to"] = ratio.low, ratio.high
    fastest = "in place" if found.best.graph else "search"
    row["in place, over recipe"] = race.speedup(fastest, over="recipe").median
    row["error"] = race["search"].error.relative
    row["first_call_s"] = race["search"].cold_s
    row["roof"] = least_seconds(found.best, model, x, peaks) / took
    row["plans"] = len(found.trials)
    print(row, flush=True)
    return row


def least_seconds(plan, model, x, peaks):
    """Return the least time for a plan's products, and to read and write once."""
    mine = optimizing.prepared(plan, model)
    with switches.fast_path(False):  # else the counter does not see what is inside
        work = roofline.count(mine, x.to(plan.dtype))
    precision = plan.precision.split()[0]
    by_compute = work.flops / peaks.flops_per_s[precision]
    return max(by_compute, work.bytes_least / peaks.bytes_per_s)


if __name__ == "__main__":
    main()
