"""Every chart of the course; the only module that draws.

One chart answers one question. Colors are Okabe and Ito's, the same for a format or a
technique everywhere, with a marker beside the color. The baseline is gray, a limit of
the hardware a dashed dark line, the reader's guess hollow, the reference machine an
outline.
Each function takes ``ax=None``, draws, and returns the axes.
"""

import contextlib
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Literal

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from helpers import formats
from helpers._arguments import (
    Finite,
    Least0,
    Positive,
    Rule,
    Size,
    checked,
    quoted,
)
from helpers.comparing import Comparison, Result, show_seconds
from helpers.optimizing import Search
from helpers.records import Record
from helpers.roofline import Peaks, Work

BLACK, GRAY, DARK = "#000000", "#7f7f7f", "#333333"
ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"

LOOK = {  # name → (color, marker)
    "FP64": (BLACK, "s"),
    "FP32": (GRAY, "o"),
    "TF32": (ORANGE, "D"),
    "BF16": (BLUE, "^"),
    "FP16": (VERMILION, "v"),
    "FP8 E4M3": (GREEN, "P"),
    "FP8 E5M2": (PURPLE, "X"),
    "FP4 E2M1": (SKY, "h"),
    "E8M0": (YELLOW, "*"),
    "overhead": (PURPLE, "o"),
    "memory": (SKY, "s"),
    "compute": (GREEN, "^"),
    "grad": (GRAY, "o"),
    "no_grad": (SKY, "s"),
    "inference_mode": (PURPLE, "D"),
    "highest": (GRAY, "o"),
    "high": (ORANGE, "D"),
    "medium": (PURPLE, "s"),
    "eager": (GRAY, "o"),
    "compiled": (BLUE, "s"),
    "default": (BLUE, "s"),
    "reduce-overhead": (GREEN, "^"),
    "max-autotune": (VERMILION, "v"),
    "max-autotune-no-cudagraphs": (ORANGE, "D"),
    "written out": (BLACK, "x"),
    "math": (GRAY, "o"),
    "efficient": (SKY, "s"),
    "flash": (VERMILION, "v"),
    "cuDNN": (GREEN, "P"),
    "by hand": (GREEN, "^"),
    "graph": (GREEN, "^"),
}
SPARE = [(BLUE, "o"), (VERMILION, "s"), (GREEN, "^"), (PURPLE, "D"), (ORANGE, "v")]
FIELD_TINTS = {"sign": "#F3C9DD", "exponent": "#F9DDA6", "significand": "#BFE3F5"}
LEFT = (PURPLE, ORANGE, YELLOW)  # for more parts than good, fair, bad, unknown
STYLE = {
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "text.color": DARK,
    "axes.labelcolor": DARK,
    "axes.edgecolor": DARK,
    "xtick.color": DARK,
    "ytick.color": DARK,
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "legend.frameon": False,
    "legend.fontsize": 9,
}
Formats = Annotated[Sequence[str | formats.Format], Rule(len, "one format or more")]
# What failed has no number: NaN.
Maybe = Rule(lambda x: not abs(x) >= 1e100, "a finite number, or NaN for what failed")
Numbers = Mapping[str, Annotated[float, Maybe]]
Speed = Annotated[
    float, Rule(lambda x: not (x <= 1e-100 or x >= 1e100), "positive, or NaN")
]
WIDTH, HEIGHT, DPI = 7.0, 3.4, 100


def show() -> None:
    """Show the figures drawn so far: the last line of a cell that draws."""
    plt.show()


@contextlib.contextmanager
def _axes(ax, height: float = HEIGHT):
    """Draw in our style, into the given axes or a new figure of their own."""
    with plt.rc_context(STYLE):
        own = ax is None
        if own:
            size = (WIDTH, height)
            figure, ax = plt.subplots(figsize=size, dpi=DPI, layout="constrained")
        try:
            yield ax
        except BaseException:
            if own:
                plt.close(figure)  # half a chart is none
            raise


@checked
def look(name: str, index: int = 0) -> tuple[str, str]:
    """Return (color, marker) of a format or technique; spare ones by index.

    "BF16, padded" and "a layer, BF16" look like "BF16".
    """
    known = [LOOK[part] for part in name.split(", ") if part in LOOK]
    return known[0] if known else SPARE[index % len(SPARE)]


# ----------------------------------------------------------------------- number formats


@checked
def bit_layout(
    value, names: Formats = ("FP32", "TF32", "BF16", "FP16"), ax: Axes | None = None
):
    """Draw how formats store a number: one row each, aligned at the binary point."""
    numbers = [formats.round_number(value, name) for name in names]
    point = max(n.format.exponent_bits + n.format.signed for n in numbers)
    right = point + max(n.format.significand_bits for n in numbers)
    small = right > 36
    with _axes(ax, height=0.5 * len(numbers) + 0.75) as ax:
        for row, number in enumerate(numbers):
            ax.text(-0.4, row + 0.5, number.format.name, ha="right", va="center")
            column = point - number.format.exponent_bits - number.format.signed
            for field, bits in zip(FIELD_TINTS, number.fields, strict=True):
                for bit in bits:
                    box = (column + 0.04, row + 0.12), 0.92, 0.76
                    tint = FIELD_TINTS[field]
                    ax.add_patch(
                        Rectangle(*box, facecolor=tint, edgecolor=DARK, lw=0.5)
                    )
                    size = 6 if small else 9
                    middle = {"ha": "center", "va": "center", "fontsize": size}
                    ax.text(column + 0.5, row + 0.5, bit, family="monospace", **middle)
                    column += 1
            stored = f" {number.value:.10g}"
            ax.text(right + 0.2, row + 0.5, stored, va="center", fontsize=9.5)
        ax.plot([point, point], [0, len(numbers)], color=DARK, lw=1.5)
        exponent, significand = point / 2, (point + right) / 2
        ax.text(exponent, -0.25, "sign and exponent", ha="center", fontsize=9)
        ax.text(
            significand, -0.25, "significand, after the 1.", ha="center", fontsize=9
        )
        ax.text(right + 0.2, -0.25, " value stored", fontsize=9)
        ax.set_xlim(-0.12 * right, right * 1.34)
        ax.set_ylim(len(numbers), -0.7)
        ax.set_title(f"{value} in {len(numbers)} formats, bit by bit")
        ax.axis("off")
    return ax


@checked
def spacing(names: Formats = ("FP32", "TF32", "BF16", "FP16"), ax: Axes | None = None):
    """Draw the distance between neighboring numbers against their magnitude."""
    with _axes(ax) as ax:
        for index, name in enumerate(names):
            f, (color, _) = formats.get(name), look(formats.get(name).name, index)
            low = math.log2(f.smallest_subnormal)
            exponents = np.arange(max(low, -44), min(f.max_exponent, 40) + 1)
            steps = formats.ulp(2.0**exponents, f)
            style = {"color": color, "where": "post", "lw": 2}
            dashed = "--" if f.name == "TF32" else "-"
            ax.step(2.0**exponents, steps, label=f.name, ls=dashed, **style)
        _powers_of_two(ax, "x", 16)
        _powers_of_two(ax, "y", 16)
        ax.set_xlabel("magnitude of the number")
        ax.set_ylabel("distance to the next one")
        ax.set_title("Spacing of numbers against their magnitude")
        ax.legend()
    return ax


@checked
def ranges(names: Formats = ("FP32", "TF32", "BF16", "FP16"), ax: Axes | None = None):
    """Draw the range of formats as bars; hatched where precision runs out."""
    limits = [(f.smallest_subnormal, f.max) for f in map(formats.get, names)]
    low = math.log2(min(limit[0] for limit in limits))
    high = math.log2(max(limit[1] for limit in limits))
    gap = 0.015 * (high - low)
    with _axes(ax, height=0.42 * len(names) + 1.3) as ax:
        for row, name in enumerate(names):
            f, (color, _) = formats.get(name), look(formats.get(name).name, row)
            ends = (f.smallest_subnormal, f.smallest_normal, f.max)
            tiny, normal, top = (math.log2(end) for end in ends)
            ax.barh(row, top - normal, left=normal, color=color, height=0.6)
            faint = {"facecolor": "white", "edgecolor": color, "hatch": "////"}
            ax.barh(row, normal - tiny, left=tiny, height=0.6, **faint)
            ax.text(top + gap, row, f"{f.max:.5g}", va="center", fontsize=9)
            ax.text(
                tiny - gap, row, f"{ends[0]:.2g}", va="center", ha="right", fontsize=9
            )
        ax.set_yticks(range(len(names)), [formats.get(n).name for n in names])
        ax.invert_yaxis()
        ax.set_xlim(low - 12 * gap, high + 14 * gap)
        step = 2 ** round(math.log2((high - low) / 8))
        ticks = np.arange(math.ceil(low / step) * step, high + 1, step, dtype=int)
        ax.set_xticks(ticks, [f"$2^{{{t}}}$" for t in ticks])
        ax.set_xlabel("positive numbers; hatched: subnormal, fewer significant bits")
        ax.set_title("Range of each format: smallest and largest positive number")
    return ax


@checked
def rounding_error(names: Formats = ("TF32", "BF16", "FP16"), ax: Axes | None = None):
    """Draw the largest relative rounding error of random numbers, by magnitude."""
    exponents = np.arange(-32, 25, dtype=np.float64)
    random = torch.Generator().manual_seed(0)
    mantissas = 1 + torch.rand(2000, generator=random, dtype=torch.float64)
    with _axes(ax) as ax:
        for index, name in enumerate(names):
            f, (color, marker) = formats.get(name), look(formats.get(name).name, index)
            worst = []
            for exponent in exponents:
                x = mantissas * 2.0**exponent
                worst.append(((formats.round_to(x, f) - x).abs() / x).max().item())
            worst = np.array(worst)
            worst[~np.isfinite(worst)] = np.nan  # overflow: no number to be wrong by
            style = {"color": color, "marker": marker, "markevery": 4, "ms": 5}
            dashed = "--" if f.name == "TF32" else "-"
            ax.plot(2.0**exponents, worst, label=f.name, ls=dashed, **style)
            last = np.flatnonzero(np.isfinite(worst))[-1]
            if last < len(exponents) - 1:
                place = (2.0 ** exponents[last], worst[last])
                note = {"xytext": (8, 10), "textcoords": "offset points", "fontsize": 9}
                ax.annotate("overflow", place, color=color, **note)
        _powers_of_two(ax, "x", 8)
        ax.set_yscale("log")
        ax.set_xlabel("magnitude of the number")
        ax.set_ylabel("largest relative error")
        ax.set_title("Relative rounding error against magnitude (2,000 numbers each)")
        ax.legend()
    return ax


# ------------------------------------------------------------------------- measurements


@checked
def lines(
    x: Annotated[Sequence[Finite], Rule(len, "one number or more")],
    series: Mapping[str, Sequence[float]],
    title: str,
    xlabel: str,
    ylabel: str,
    log: Literal["", "x", "y", "xy"] = "xy",
    truth: Sequence[float] | None = None,
    truth_label: str = "exact",
    dots: bool = False,
    predicted: Mapping[str, Sequence[float]] | None = None,
    reference: Record | None = None,
    guides: Mapping[str, Sequence[float]] | None = None,
    ax: Axes | None = None,
):
    """Draw quantities against a sweep; ``truth`` is the dashed dark line.

    Args:
        dots: draw a dot for each value and no line between.
        log: the axes that are logarithmic: "", "x", "y" or "xy".
        predicted: drawn dashed, in the color of the series of the same name.
        reference: the reference machine's run, dotted; its data are its own ``x``, and
            series by name, also such as are missing here.
        guides: slopes to read the others by, thin and gray, named at their ends.
    """
    for what, y in {**series, **(predicted or {}), **(guides or {})}.items():
        if len(y) != len(x):
            raise ValueError(
                f"{what!r}={quoted(y)}: give one value to each of {len(x)} x"
            )
    if truth is not None and len(truth) != len(x):
        raise ValueError(f"truth={quoted(truth)}: give one value to each of {len(x)} x")
    if "x" in log and not min(x) > 0:
        raise ValueError(f"x={quoted(x)}: give positive numbers to a logarithmic axis")
    with _axes(ax) as ax:
        ghosts = {} if reference is None else dict(reference.data)
        theirs = ghosts.pop("x", ())
        every = max(1, len(theirs) // 8)
        if truth is not None:
            ax.plot(x, truth, color=DARK, ls="--", lw=1.5, label=truth_label)
        for name, y in (guides or {}).items():
            ax.plot(x, y, color=GRAY, ls="-.", lw=1)
            place = {"xytext": (4, 0), "textcoords": "offset points", "va": "center"}
            ax.annotate(name, (x[-1], y[-1]), color=GRAY, fontsize=9, **place)
        for index, (name, y) in enumerate(series.items()):
            color, marker = look(name, index)
            step = max(1, len(x) // 8)
            # Thinner from series to series: one that lies on another hides none.
            thin = max(0.0, 1 - index / 3)
            style = {"color": color, "marker": marker}
            style |= {"ms": 4.5 + 3.5 * thin, "lw": 1.2 + 1.4 * thin}
            style |= {"ls": "", "ms": 5} if dots else {"markevery": step}
            ax.plot(x, y, label=name, **style)
            if predicted and name in predicted:
                guide = {"color": color, "ls": "--", "lw": 1.2}
                ax.plot(x, predicted[name], label=f"{name}, predicted", **guide)
            if name in ghosts:
                ghost = {"color": color, "ls": ":", "lw": 1.2, "mfc": "white"}
                ghost |= {"marker": marker, "ms": 5, "markevery": every}
                ax.plot(theirs, ghosts[name], **ghost)
        for index, name in enumerate(
            [n for n in ghosts if n not in series], len(series)
        ):
            color, marker = look(name, index)
            ghost = {"color": color, "marker": marker, "ls": ":", "lw": 1.2, "ms": 5}
            ghost |= {"mfc": "white", "markevery": every}
            ax.plot(theirs, ghosts[name], label=name, **ghost)
        if "x" in log:
            far = [*x, *theirs] if ghosts else x
            _powers_of_two(ax, "x", max(1, round(math.log2(max(far) / min(far)) / 6)))
        if "y" in log:
            ax.set_yscale("log")
            low, high = ax.get_ylim()
            if high < 500 * low:  # less than three decades have too few ticks
                _powers_of_two(ax, "y", max(1, round(math.log2(high / low) / 6)))
        ax.set(title=title, xlabel=xlabel, ylabel=ylabel)
        if ghosts:  # two machines' lines leave no room for a legend among them
            ax.plot([], [], ":", color=DARK, lw=1.2, label=reference.label)
            below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.17)}
            ax.legend(ncols=4, columnspacing=1.2, **below)
        else:
            ax.legend()
    return ax


@checked
def bars(
    values: Numbers,
    title: str,
    xlabel: str,
    words: Mapping[str, str] | None = None,
    spread: Mapping[str, tuple[Finite, Finite]] | None = None,
    limit: Finite | None = None,
    limit_label: str = "",
    log: bool = False,
    reference: Record | None = None,
    ax: Axes | None = None,
):
    """Draw one bar per name, from zero, with its value written at the end.

    Args:
        values: NaN is written as "failed".
        words: what to write at the ends instead of the numbers, by name.
        spread: the two ends of an interval around each value, as error bars.
        reference: the reference machine's run, as outlines; its data are values by
            name. Names that are missing here get an outline alone.
        limit, limit_label: a dashed dark line across all bars.
        log: a logarithmic axis, which has no zero: dots instead of bars.
    """
    ghosts = {} if reference is None else reference.data
    names = list(dict.fromkeys((*values, *ghosts)))
    with _axes(ax, height=0.36 * len(names) + 1.2) as ax:
        for row, name in enumerate(names):
            color, _ = look(name, row)
            if name in ghosts:
                outline = {"fill": False, "edgecolor": DARK, "lw": 1.2, "ls": ":"}
                ax.barh(row, ghosts[name], height=0.8, **outline)
            value, said = values.get(name, 0), (words or {}).get(name)
            if math.isnan(value):
                _note(ax, row, "failed")
                continue
            said = f"{value:.3g}" if said is None and name in values else said or ""
            end = value
            if log and name in values:
                ax.plot(value, row, "o", color=BLUE, ms=8)
            elif not log:
                ax.barh(row, value, height=0.6, color=color)
            if spread and name in spread:
                low, end = spread[name]
                gaps = [[max(value - low, 0.0)], [max(end - value, 0.0)]]
                ax.errorbar(value, row, xerr=gaps, color=DARK, capsize=3)
            ax.text(end, row, f"   {said}", va="center", fontsize=9)
        tops = (*values.values(), *ghosts.values(), limit or 0)
        tops = [value for value in tops if value > 0] or [1.0]
        if ghosts:
            label = f"dotted outline: {reference.label}"
            nothing = {"fill": False, "edgecolor": DARK, "ls": ":", "height": 0}
            ax.barh(0, 0, **nothing, label=label)
        if limit is not None:
            ax.axvline(limit, color=DARK, ls="--", lw=1.2, label=limit_label)
        if limit_label or ghosts:
            handles, labels = ax.get_legend_handles_labels()
            ax.figure.legend(handles, labels, loc="outside lower center")
        if log:
            ax.set_xscale("log")
            ax.set_xlim(min(tops) / 3, max(tops) * (max(tops) / min(tops)) ** 0.35)
        else:
            ax.set_xlim(0, max(tops) * 1.35)
            if values and all(isinstance(value, int) for value in values.values()):
                ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_yticks(range(len(names)), names)
        ax.set_ylim(len(names) - 0.4, -0.6)
        ax.set(title=title, xlabel=xlabel)
    return ax


@checked
def stacked(
    counts: Mapping[str, Mapping[str, Size]],
    title: str,
    xlabel: str,
    ax: Axes | None = None,
):
    """Draw one bar per name, made of parts with their counts written in them.

    Args:
        counts: name → part → how many; the parts have the same order everywhere, and
            their colors go from good to bad to unknown.
    """
    parts = dict.fromkeys(part for row in counts.values() for part in row)
    if not 0 < len(parts) <= 4 + len(LEFT):
        raise ValueError(f"counts={quoted(counts)}: give 1 to {4 + len(LEFT)} parts")
    colors = dict(zip(parts, (GREEN, SKY, VERMILION, GRAY, *LEFT), strict=False))
    with _axes(ax, height=0.27 * len(counts) + 1.3) as ax:
        for row, mine in enumerate(counts.values()):
            start = 0
            for part, count in mine.items():
                look = {"color": colors[part], "edgecolor": "white", "height": 0.75}
                ax.barh(row, count, left=start, label=part if not row else "", **look)
                if count:
                    ax.text(start + count / 2, row, count, ha="center", va="center")
                start += count
        ax.set_yticks(range(len(counts)), list(counts))
        ax.set_ylim(len(counts) - 0.4, -0.6)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set(title=title, xlabel=xlabel)
        ax.figure.legend(loc="outside lower center", ncols=len(parts))
    return ax


@checked
def decisions(
    steps: Sequence[tuple[str, Literal["yes", "no"], str]],
    last: str,
    title: str,
    ax: Axes | None = None,
):
    """Draw a chain of yes-or-no questions, top to bottom, each with one way out.

    Args:
        steps: (question, the answer that leads out, "yes" or "no", and where to); the
            other answer leads down to the next question.
        last: what is left at the bottom.
    """
    arrow = {"arrowstyle": "-|>", "color": DARK, "shrinkA": 0, "shrinkB": 0}
    bottom, half = len(steps), 0.32  # half the height of a box

    def box(left: float, right: float, row: int, words: str, color: str) -> None:
        corner, size = (left, row - half), (right - left, 2 * half)
        ax.add_patch(Rectangle(corner, *size, fc=color, ec=DARK))
        ax.text((left + right) / 2, row, words, ha="center", va="center")

    with _axes(ax, height=0.72 * (bottom + 1) + 0.4) as ax:
        for row, (question, out, where) in enumerate(steps):
            box(0.0, 0.45, row, question, "#E8F1FA")
            box(0.54, 1.0, row, where, "#FDF3D9")
            ax.annotate("", (0.54, row), (0.45, row), arrowprops=arrow)
            ax.text(0.49, row - 0.06, out, ha="center", va="bottom", fontsize=9)
            ends = (0.225, row + 1 - half), (0.225, row + half)
            ax.annotate("", *ends, arrowprops=arrow)
            down = "no" if out == "yes" else "yes"
            ax.text(0.235, row + 0.5, down, va="center", fontsize=9)
        box(0.0, 0.45, bottom, last, "#FDF3D9")
        ax.set(xlim=(-0.01, 1.01), ylim=(bottom + 0.4, -0.4), title=title)
        ax.set_axis_off()
    return ax


@checked
def plane(
    points: Mapping[str, tuple[Speed, Least0]],
    title: str,
    xlabel: str,
    reference: Record | None = None,
    ax: Axes | None = None,
):
    """Draw variants as points: speed across, relative error up, both logarithmic.

    The lower right corner is best. What nothing else beats in both lies on the lower
    right rim.

    Args:
        points: name → (speed, relative error); an error of 0 is drawn at the bottom.
            A speed of NaN, of what failed, is not drawn.
        reference: the reference machine's run, as outlines; its data are the same
            pairs by name.
    """
    ghosts = {} if reference is None else reference.data
    points = {name: spot for name, spot in points.items() if not math.isnan(spot[0])}
    with _axes(ax) as ax:
        errors = [error for _, error in (*points.values(), *ghosts.values())]
        floor = min((error for error in errors if error > 0), default=1e-8) / 3
        for index, name in enumerate(dict.fromkeys((*points, *ghosts))):
            color, marker = look(name, index)
            spots = ((ghosts, "white", color), (points, color, color))
            for side, face, edge in spots:
                if name not in side:
                    continue
                speed, error = side[name]
                style = {"mfc": face, "mec": edge, "ms": 9, "mew": 1.5, "ls": ""}
                ax.plot(speed, max(error, floor), marker, **style)
                words = name if side is points or name not in points else ""
                place = {"xytext": (9, 5), "textcoords": "offset points"}
                ax.annotate(words, (speed, max(error, floor)), fontsize=9, **place)
        if ghosts:
            empty = {"mfc": "white", "mec": DARK, "ls": "", "ms": 7}
            ax.plot([], [], "o", label=f"outline: {reference.label}", **empty)
            ax.legend(loc="upper left")
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.margins(0.18)
        ax.set(title=title, xlabel=xlabel, ylabel="relative error (lower is better)")
    return ax


@checked
def search(found: Search, title: str = "", most: Size = 4, ax: Axes | None = None):
    """Draw every plan of a search: speedup across, error up, the budget dashed.

    Plans within the budget are filled, those over it hollow; the best is ringed. Plans
    without an error stand on the lower rim. Named are the best, FP32 and the fastest.

    Args:
        most: how many plans to name besides the best and FP32.
    """
    drawn = [t for t in found.trials if t.result and t.result.n and t.result.error]
    drawn = [t for t in drawn if math.isfinite(t.result.error.relative)]
    errors = [t.result.error.relative for t in drawn if t.result.error.relative > 0]
    floor = min([*errors, found.max_error / 100]) / 6
    fastest = sorted((t for t in drawn), key=lambda t: -t.speedup.median)[:most]
    with _axes(ax, height=3.8) as ax:
        ax.axhline(found.max_error, color=DARK, ls="--", lw=1.2)
        words = f"budget: {found.max_error:g}"
        place = {"transform": ax.get_yaxis_transform(), "fontsize": 9, "va": "bottom"}
        ax.text(0.01, found.max_error, words, **place)
        named = []
        for trial in drawn:
            base = trial.plan.precision == "FP32" and len(trial.plan.parts) == 1
            x = 1.0 if base else trial.speedup.median
            y = max(trial.result.error.relative, floor)
            color, marker = look(trial.plan.precision.split()[0])
            face = "none" if trial.verdict else color
            ax.plot(x, y, marker, ms=8, mfc=face, mec=color, ls="")
            if trial.plan == found.best:
                ax.plot(x, y, "o", ms=16, mfc="none", mec=DARK, mew=1.5)
            if trial.plan == found.best or base or trial in fastest:
                named.append((y, x, str(trial.plan)))
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_ylim(floor / 2.5, max([*errors, found.max_error]) * 6)
        speeds = [x for _, x, _ in named] + [t.speedup.median for t in drawn]
        speeds = [x for x in speeds if x > 0]
        low, high = 0.85 * min(speeds), 1.15 * max(*speeds, 2 * min(speeds))
        end = low * (high / low) ** 1.8  # the right part is for the names
        ax.set_xlim(low, end)
        for name in dict.fromkeys(t.plan.precision.split()[0] for t in drawn):
            color, marker = look(name)
            ax.plot([], [], marker, color=color, ls="", label=name)
        ax.legend(loc="upper right", ncols=4, columnspacing=0.8, handletextpad=0.1)
        _labels(ax, named, low * (end / low) ** 0.6)
        _plain_ticks(ax)
        speed, error = "speedup over FP32", "relative error (lower is better)"
        ax.set(title=title or "Plans: speed and error", xlabel=speed, ylabel=error)
    return ax


def _labels(
    ax, named: Sequence[tuple[float, float, str]], at: float | None = None
) -> None:
    """Write names in a column to the right of (y, x), or ``at`` an x; none overlap."""
    least = math.log(ax.get_ylim()[1] / ax.get_ylim()[0]) / 17
    at = 1.25 * max(x for _, x, _ in named) if at is None else at
    height = -math.inf
    for y, x, words in sorted(named):
        height = max(math.log(y), height + least)
        spot = (at, math.exp(height))
        line = {"arrowstyle": "-", "color": GRAY, "lw": 0.6, "shrinkB": 5}
        line["relpos"] = (0, 0.5)  # it ends at the left edge of the words
        place = {"va": "center", "fontsize": 9, "arrowprops": line}
        ax.annotate(words, (x, y), xytext=spot, **place)


def _plain_ticks(ax) -> None:
    """Label a logarithmic axis of speedups with plain numbers: 0.5, 1, 2, 5, 10."""
    low, high = ax.get_xlim()
    steps = [m * 10.0**k for k in range(-3, 4) for m in (1, 2, 5)]
    ticks = [tick for tick in steps if low <= tick <= high]
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.set_xticks([], minor=True)


@checked
def ladder(
    steps: Numbers,
    alone: Numbers | None = None,
    guess: Numbers | None = None,
    reference: Record | None = None,
    title: str = "",
    unclear: Collection[str] = (),
    ax: Axes | None = None,
):
    """Draw speedups step upon step: bars for all steps so far, and each step alone.

    Args:
        steps: step → speedup over the start once this step and those before are taken;
            NaN, here and below, is written as "failed".
        alone: step → its speedup without the others, as a diamond.
        guess: as hollow circles.
        reference: the reference machine's run, as outlines; its data are ``steps``.
        unclear: those whose difference is not measurable: "step" or "step alone".
    """
    ghosts = {} if reference is None else reference.data
    names = list(dict.fromkeys((*steps, *ghosts)))
    with _axes(ax, height=0.4 * len(names) + 1.3) as ax:
        for row, name in enumerate(names):
            if name in ghosts:
                outline = {"fill": False, "edgecolor": DARK, "lw": 1.2, "ls": ":"}
                ax.barh(row, ghosts[name], height=0.8, **outline)
            if name in steps:
                color = GRAY if row == 0 else BLUE
                ax.barh(row, steps[name], height=0.55, color=color)
            ends = [
                each.get(name, 0) for each in (steps, ghosts, alone or {}, guess or {})
            ]
            same = "no measurable difference" if name in unclear and row > 0 else ""
            words = f"   {_gain(steps[name], same)}" if name in steps else ""
            if alone and name in alone and row > 0:
                style = {"mfc": "white", "mec": VERMILION, "mew": 1.8, "ms": 7}
                ax.plot(alone[name], row, "D", **style)
                same = "no difference" if f"{name} alone" in unclear else ""
                words += f"  (alone {_gain(alone[name], same)})"
            if guess and name in guess:
                ax.plot(guess[name], row - 0.3, "o", mfc="white", mec=DARK, ms=7)
            ax.text(np.nanmax(ends), row, words, va="center", fontsize=9)
        ax.axvline(1, color=DARK, ls="--", lw=1)
        values = [*steps.values(), *ghosts.values(), *(alone or {}).values()]
        ax.set_xlim(0, np.nanmax([1.0, *values, *(guess or {}).values()]) * 1.45)
        ax.set_yticks(range(len(names)), names)
        ax.set_ylim(len(names) - 0.4, -0.6)
        notes = ["◇ the step alone"] * bool(alone) + ["○ your guess"] * bool(guess)
        if ghosts:
            notes.append(f"dotted: {reference.label}")
        xlabel = "speedup over the first row, all steps so far"
        ax.set(title=title, xlabel="\n".join([xlabel, "; ".join(notes)]).rstrip())
    return ax


def _gain(ratio: float, same: str) -> str:
    return "failed" if math.isnan(ratio) else same or f"{ratio:.3g}×"


@checked
def memory(
    curves: Mapping[str, Sequence[tuple[Finite, int]]],
    title: str,
    ax: Axes | None = None,
):
    """Draw the memory that calls hold over time; each curve ends at its own time.

    Args:
        curves: name → (seconds, bytes on top) of each change, in order.
    """
    with _axes(ax) as ax:
        most = max((b for curve in curves.values() for _, b in curve), default=0)
        power, unit = (30, "GiB") if most >= 2**32 else (20, "MiB")
        for index, (name, curve) in enumerate(curves.items()):
            color, _ = look(name, index)
            seconds = np.array([t for t, _ in curve])
            held = np.array([b for _, b in curve]) / 2**power
            part = 100 * seconds / max(seconds.max(initial=0), 1e-12)
            label = f"{name}: peak {held.max(initial=0):.3g} {unit}"
            ax.step(part, held, where="post", color=color, lw=1.8, label=label)
        ax.set_ylim(bottom=0)
        ax.set(title=title, ylabel=f"{unit} on top of what was there")
        ax.set_xlabel("time of the call, from first to last allocation, %")
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=3)
    return ax


@checked
def timeline(
    rows: Mapping[str, Sequence[tuple[Least0, Least0]]],
    title: str,
    ax: Axes | None = None,
):
    """Draw when a GPU worked: one row a run, one bar a kernel, gaps where it waited.

    Args:
        rows: name → (start, duration) of each kernel, seconds from the run's first.

    Raises:
        ValueError: a row is empty.
    """
    for name, spans in rows.items():
        if not len(spans):
            raise ValueError(f"nothing to draw for {name!r}: it has no kernels")
    with _axes(ax, height=0.5 * len(rows) + 1.1) as ax:
        far = max(start + long for spans in rows.values() for start, long in spans)
        for row, (name, spans) in enumerate(rows.items()):
            color, _ = look(name, row)
            bars = [(start * 1e6, long * 1e6) for start, long in spans]
            ax.broken_barh(bars, (row - 0.3, 0.6), color=color, lw=0)
            ends = max(start + long for start, long in spans)
            busy = _covered(spans) / ends if ends else 1.0
            words = f" {len(spans)} kernels in {show_seconds(ends)},\n busy {busy:.0%}"
            ax.text(ends * 1e6, row, words, va="center", fontsize=9)
        ax.set_yticks(range(len(rows)), list(rows))
        ax.set_ylim(len(rows) - 0.5, -0.5)
        ax.set_xlim(-0.02e6 * far, far * 1.35e6)  # the first bar beside the axis
        ax.set(title=title, xlabel="microseconds since the first kernel began")
    return ax


def _covered(spans: Sequence[tuple[float, float]]) -> float:
    """Return the time in which at least one of the spans was running."""
    covered = reached = 0.0
    for start, long in sorted(spans):
        covered += max(start + long - max(start, reached), 0.0)
        reached = max(reached, start + long)
    return covered


@checked
def clocks(
    readings: Mapping[str, Positive], truth: str, title: str, ax: Axes | None = None
):
    """Draw what several ways of timing said of one call, on one logarithmic axis.

    Args:
        readings: way → seconds per call.
        truth: the way that is right; the dashed line stands there.
    """
    if truth not in readings:
        raise ValueError(f"truth={truth!r}: give one of {', '.join(readings)}")
    with _axes(ax, height=0.38 * len(readings) + 1.1) as ax:
        right = readings[truth]
        ax.axvline(right, color=DARK, ls="--", lw=1.2)
        for row, (name, seconds) in enumerate(readings.items()):
            color = GREEN if name == truth else VERMILION
            ax.plot([right, seconds], [row, row], color=color, lw=2)
            ax.plot(seconds, row, "o", color=color, ms=8)
            off = f"  {show_seconds(seconds)}"
            if name != truth:
                off += f"  ({seconds / right:.2g}×)"
            side = "left" if seconds >= right else "right"
            ax.text(seconds, row, off + "  ", va="center", ha=side, fontsize=9)
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(lambda seconds, _: show_seconds(seconds))
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.margins(y=0.12)
        room = (max(readings.values()) / min(readings.values())) ** 0.45 * 3
        ax.set_xlim(min(readings.values()) / room, max(readings.values()) * room)
        ax.set_yticks(range(len(readings)), list(readings))
        ax.invert_yaxis()
        ax.set(title=title, xlabel="time per call, as reported")
    return ax


@checked
def ratios(trials: Mapping[str, Sequence[Finite]], title: str, ax: Axes | None = None):
    """Draw measured ratios, one dot a trial, whose true value is 1."""
    with _axes(ax, height=0.55 * len(trials) + 1.2) as ax:
        ax.axvline(1, color=DARK, ls="--", lw=1.2)
        for row, dots in enumerate(trials.values()):
            color, marker = SPARE[row % len(SPARE)]
            lift = row + np.linspace(-0.25, 0.25, len(dots))
            ax.plot(dots, lift, marker, color=color, ms=6, alpha=0.8)
        ax.set_yticks(range(len(trials)), list(trials))
        ax.set_ylim(len(trials) - 0.4, -0.6)
        values = [1.0, *itertools.chain(*trials.values())]
        room = 0.1 * (max(values) - min(values)) + 0.02
        ax.set_xlim(min(values) - room, max(values) + room)
        ax.set(title=title, xlabel="measured speedup; both are the same function: 1")
    return ax


@checked
def speed_and_error(
    results: Comparison,
    guess: Numbers | None = None,
    reference: Record | None = None,
    title: str = "",
):
    """Draw speedups and errors of a comparison side by side, one row a variant.

    Left: speedup over the first variant, its 99 % confidence interval as error bars, a
    guess as a hollow circle, the reference machine's run as an outlined bar.
    Right: relative error on a logarithmic axis; "exact", NaN and failures are words.
    """
    names = list(results)
    there = reference.comparison if reference is not None else None
    with plt.rc_context(STYLE):
        size = (WIDTH, 0.5 * len(names) + 1.4)
        errors = [result.error for result in results.values() if result.error]
        inexact = any(e.relative > 0 and math.isfinite(e.relative) for e in errors)
        figure, (left, right) = plt.subplots(
            1,
            2,
            figsize=size,
            dpi=DPI,
            layout="constrained",
            sharey=True,
            width_ratios=(1, 1) if inexact else (2.5, 1),
        )
        far = [1.0, *(guess or {}).values()]
        for row, name in enumerate(names):
            color = GRAY if name == results.baseline.name else look(name, row)[0]
            far.append(_speed_bar(left, row, results, name, color))
            if there is not None and name in there and there[name].seconds:
                far.append(there.speedup(name).median)
                outline = {"fill": False, "edgecolor": DARK, "lw": 1.2, "ls": ":"}
                left.barh(row, far[-1], height=0.72, **outline)
            if guess and name in guess:
                # On the upper edge of the bar: its words stand at the end.
                hollow = {"mfc": "white", "mec": DARK, "ms": 7, "mew": 1.4}
                left.plot(guess[name], row - 0.3, "o", **hollow)
            _error_dot(right, row, results[name], color)
        left.axvline(1, color=DARK, ls="--", lw=1)
        left.set_xlim(0, max(far) * 1.55)
        left.set_yticks(range(len(names)), names)
        left.set_ylim(len(names) - 0.4, -0.6)
        left.set_xlabel("speedup (higher is faster)")
        right.set_xlabel("relative error" + " (lower is better)" * inexact)
        _error_axis(right)
        notes = ["○ your guess"] * bool(guess)
        if left.patches and not all(bar.get_fill() for bar in left.patches):
            notes.append(f"dotted outline: {reference.label}")
        figure.suptitle(title or "Speed and error", fontsize=11)
        if notes:
            figure.supxlabel(";  ".join(notes), fontsize=9)
    return left, right


def _speed_bar(ax, row: int, results: Comparison, name: str, color: str) -> float:
    """Draw one speedup with its spread and words; return how far it reaches."""
    ratio, end = results.speedup(name), 0.0
    words = "baseline" if name == results.baseline.name else str(ratio).split(" (")[0]
    if results[name].failure:
        words = "failed"
    elif math.isnan(ratio.median):
        words = "nothing to compare with"
    else:
        ax.barh(row, ratio.median, height=0.5, color=color)
        gaps = (ratio.median - ratio.low, ratio.high - ratio.median)
        spread = [[max(gap, 0.0)] for gap in gaps]
        ax.errorbar(ratio.median, row, xerr=spread, color=DARK, capsize=3)
        end = min(ratio.high, 3 * ratio.median)
    ax.text(end, row, f"  {words}", va="center", fontsize=9)
    return end


def _error_dot(ax, row: int, result: Result, color: str) -> None:
    error = result.error
    if error is None:
        _note(ax, row, result.failure.split(":")[0] or "-")
    elif error.exact or not error.relative > 0 or math.isinf(error.relative):
        _note(ax, row, str(error))
    else:
        ax.plot(error.relative, row, "o", color=color, ms=8)
        place = {"xytext": (8, 0), "textcoords": "offset points", "va": "center"}
        ax.annotate(f"{error.relative:.1e}", (error.relative, row), fontsize=9, **place)


def _error_axis(ax) -> None:
    """Make the error axis logarithmic, if there is an error on it at all."""
    if not ax.lines:
        ax.set_xticks([])
        return
    ax.set_xscale("log")
    ax.margins(x=0.45)
    ax.xaxis.set_major_locator(LogLocator(numticks=5))
    ax.xaxis.set_minor_locator(LogLocator(numticks=1))


def _note(ax, row: int, words: str) -> None:
    """Write words in the middle of a row."""
    place = {"transform": ax.get_yaxis_transform(), "va": "center", "ha": "center"}
    ax.text(0.5, row, words, fontsize=9, **place)


@checked
def roofline(
    peaks: Peaks,
    points: Mapping[str, tuple[Work, Speed]],
    format: str = "FP32",
    title: str = "Roofline of this machine",
    ax: Axes | None = None,
):
    """Draw workloads under the machine's own roof: achieved rate against intensity.

    A filled marker is what was measured; the hollow one above it is what launching the
    operations alone would allow, drawn where that is lower than the roof. More than
    four points are named where they stand, fewer in a legend.

    Args:
        peaks: the measured limits.
        points: workload → (its ``Work``, measured seconds per call); NaN seconds, of
            what failed, are not drawn.
        format: the number format of the matrix products, for the flat roof.
    """
    if format not in peaks.flops_per_s:
        have = ", ".join(peaks.flops_per_s)
        raise ValueError(f"format={format!r}: the peaks measured are those of {have}")
    for name, (work, _) in points.items():
        if not work.all_flops:
            raise ValueError(f"{name!r} computes nothing: it has no place ({work})")
    points = {name: spot for name, spot in points.items() if not math.isnan(spot[1])}
    top, rates = peaks.flops_per_s[format], []
    intensities = [work.intensity for work, _ in points.values()]
    knee = top / peaks.bytes_per_s
    x = np.geomspace(min([*intensities, knee]) / 4, max([*intensities, knee]) * 8, 100)
    crowded, named = len(points) > 4, []
    with _axes(ax, height=4.2 if crowded else 3.5) as ax:
        roof = np.minimum(x * peaks.bytes_per_s, top)
        ax.plot(x, roof, color=DARK, ls="--", lw=1.5)
        for index, (name, (work, seconds)) in enumerate(points.items()):
            color, marker = look(name, index)
            rates.append(work.all_flops / seconds)
            launch = work.all_flops / (max(work.ops, 1) * peaks.op_s)
            ceiling = min(work.intensity * peaks.bytes_per_s, top)
            if launch < ceiling:
                hollow = {"mfc": "none", "mec": color, "ms": 9, "ls": ""}
                words = "" if crowded else f"{name}, if only launched"
                ax.plot(work.intensity, launch, marker, label=words, **hollow)
            label = "" if crowded else name
            ax.plot(work.intensity, rates[-1], marker, color=color, ms=9, label=label)
            named.append((rates[-1], work.intensity, name))
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set_ylim(min([*rates, roof[0]]) / 4, max([*rates, top]) * 4)
        place = {"ha": "left" if crowded else "right", "fontsize": 9}
        ax.text(knee if crowded else x[-1], top * 1.7, f"{format} matmul peak", **place)
        left = math.log(knee / x[0]) < 0.3 * math.log(x[-1] / x[0])  # no room there
        place = {"xytext": (-8, 4), "ha": "right"}
        place = {"xytext": (8, -8), "ha": "left"} if left else place
        place["textcoords"] = "offset points"
        spot = (knee / 2, knee / 2 * peaks.bytes_per_s)
        ax.annotate("memory bandwidth", spot, fontsize=9, **place)
        ax.set_xlabel("arithmetic intensity: FLOP per byte moved")
        ax.set_ylabel("FLOP per second")
        ax.set_title(title)
        if crowded:
            ax.set_xlim(right=x[-1] * (x[-1] / x[0]) ** 0.3)
            if any(line.get_markerfacecolor() == "none" for line in ax.lines):
                words = {"label": "hollow: if its operations were only launched"}
                ax.plot([], [], "o", mfc="none", mec=DARK, ls="", **words)
            _labels(ax, named, x[-1] * 1.1)
        if ax.get_legend_handles_labels()[1]:
            ax.legend(loc="upper left" if crowded else "lower right")
    return ax


def _powers_of_two(ax, axis: str, step: int) -> None:
    """Make an axis logarithmic, labeled with every step-th power of two."""
    getattr(ax, f"set_{axis}scale")("log", base=2)
    limits = getattr(ax, f"get_{axis}lim")()
    low, high = (math.floor(math.log2(limit)) for limit in limits)
    first = math.ceil(low / step) * step
    powers = list(
        itertools.takewhile(lambda p: p <= high, itertools.count(first, step))
    )
    labels = [f"$2^{{{p}}}$" if abs(p) > 16 or p < 0 else f"{2**p:,}" for p in powers]
    getattr(ax, f"set_{axis}ticks")([2.0**p for p in powers], labels)
    getattr(ax, f"set_{axis}ticks")([], minor=True)
    getattr(ax, f"set_{axis}lim")(*limits)  # a tick outside would widen the view
