"""Runs kept as JSON: the reference machine's, to lay beside one's own.

A record is one comparison, or one dict of plain numbers, with the conditions it was
measured under. Those of the reference machine travel with the package, in
``helpers/reference``. ``notebooks/record.py --reference`` makes them: it sets
``HELPERS_RECORD_TO``, and ``reference`` then stores this machine's run first.
"""

import contextlib
import dataclasses
import json
import math
import os
import pathlib
import textwrap

from helpers._arguments import check, checked, quoted
from helpers.comparing import Comparison, Error, Result, conditions, show_seconds

FOLDER = pathlib.Path(__file__).parent / "reference"


@checked
@dataclasses.dataclass(frozen=True)
class Record:
    """Hold a run that was kept: what was measured, and where, when and on what sizes.

    Attributes:
        name: such as "00/workloads": chapter, then measurement.
        conditions: device, torch, date, and ``sizes`` as the notebook gave them.
        comparison: the ``Comparison``, or None if it was plain data.
        data: the plain data, {} if it was a comparison.
    """

    name: str
    conditions: dict
    comparison: Comparison | None = None
    data: dict = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        check("conditions['sizes']", self.conditions.get("sizes", {}), dict)

    @property
    def label(self) -> str:
        """Return the words that label it in tables and charts."""
        c = self.conditions
        if not {"device", "torch", "date"} <= c.keys():
            return c.get("note", "no run is stored")
        sizes = "".join(f", {k}={v}" for k, v in c.get("sizes", {}).items())
        return f"{c['device']}, torch {c['torch']}, {c['date']}{sizes}"

    def __str__(self) -> str:
        """Write plain numbers on a line behind the label, to print beside one's own."""
        numbers = (f"{k} {v:.3g}" for k, v in self.data.items() if _is_number(v))
        return f"Reference: {self.label}\n  {', '.join(numbers)}".rstrip()


def reference(name: str, mine: Comparison | dict, **sizes) -> Record:
    """Return the reference machine's run of a measurement; empty if there is no other.

    Args:
        name: "chapter/measurement"; letters, digits, "-", "_" and one "/".
        mine: this machine's run; stored as the reference only while recording.
        sizes: what the run depended on, such as ``batch=32``.
    """
    _content(name, mine, sizes)  # what cannot be kept fails on every machine
    folder = os.environ.get("HELPERS_RECORD_TO")
    if folder:
        save(name, mine, pathlib.Path(folder), **sizes)
        return Record(name, {"note": "this run"})  # nothing to lay beside itself
    return load(name) or Record(name, {})


def beside(name: str, found: dict, missing: str = "") -> None:
    """Print facts, one a line: this machine's or, if it has none, the reference's.

    Args:
        name: of the record, "chapter/measurement".
        found: fact → number or words; {} where this machine has none.
        missing: why it has none, told with the reference's label.
    """
    check("found", found, dict[str, object])
    check("missing", missing, str)
    theirs = reference(name, found)
    if not found:
        where = f"On the {theirs.label}:" if theirs.data else "No run is stored."
        print(textwrap.fill(f"{missing} {where}".strip(), width=88))
    shown = found or theirs.data
    width = 2 + max(map(len, shown), default=0)
    for what, value in shown.items():
        words = f"{value:.4g}" if isinstance(value, float) else str(value)
        line, indent = f"{what:<{width}}{words}", " " * width
        print(textwrap.fill(line, width=88, subsequent_indent=indent))


def save(
    name: str, run: Comparison | dict, folder: pathlib.Path, **sizes
) -> pathlib.Path:
    """Write a run as JSON, with its conditions; return the file's path."""
    path = _path(name, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_content(name, run, sizes) + "\n", encoding="utf-8")
    return path


def _content(name: str, run: Comparison | dict, sizes: dict) -> str:
    """Write a run as JSON text."""
    record = {"name": name}
    if isinstance(run, Comparison):
        record["conditions"] = run.conditions | {"sizes": sizes}
        record["results"] = [dataclasses.asdict(result) for result in run.values()]
    elif isinstance(run, dict):
        record["conditions"] = conditions() | {"sizes": sizes}
        record["data"] = run
    else:
        raise TypeError(f"cannot keep {quoted(run)}: give a Comparison or a dict")
    return json.dumps(_plain(record), indent=1, ensure_ascii=False, allow_nan=False)


def load(name: str, folder: pathlib.Path = FOLDER) -> Record | None:
    """Read a run; None if there is no such record.

    Raises:
        ValueError: the name cannot be one, or the file is not a record.
    """
    path = _path(name, folder)
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        where = content["conditions"]
        where["device"], where["torch"], where["date"]  # every label needs them
        if "data" in content:
            return Record(name, where, data=_restored(content["data"]))
        results = [_result(entry) for entry in content["results"]]
        return Record(name, where, Comparison(results, where))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path.name} is not a record: {error!r}") from error


@checked
def side_by_side(mine: Comparison, other: Record | None):
    """Return a pandas DataFrame: speedup and error of each variant, here and there."""
    import pandas

    sides = {"here": mine}
    if other is not None and other.comparison is not None:
        sides[other.label] = other.comparison
    rows = {}
    for name in dict.fromkeys(n for side in sides.values() for n in side):
        row = {}
        for label, side in sides.items():
            result = side[name] if name in side else Result(name, failure="not run")
            base = result is side.baseline
            row[label, "time"] = show_seconds(result.median_s)
            row[label, "speedup"] = "baseline" if base else str(side.speedup(name))
            row[label, "error"] = result.failure or str(result.error or "-")
        rows[name] = row
    return pandas.DataFrame.from_dict(rows, orient="index")


def _is_number(value) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and (value != value or -math.inf <= value / 1 <= math.inf)


def _path(name: str, folder: pathlib.Path) -> pathlib.Path:
    parts = name.split("/") if isinstance(name, str) else []
    letters = "".join(parts).replace("-", "").replace("_", "")
    short = isinstance(name, str) and len(name) <= 100  # as file names must be
    if not short or len(parts) != 2 or not all(parts) or not letters.isalnum():
        raise ValueError(
            f"record name {quoted(name)}: give 'chapter/measurement' in letters, "
            "digits, -, _"
        )
    check("folder", folder, pathlib.Path)
    return folder / parts[0] / f"{parts[1]}.json"


def _plain(value):
    """Turn NumPy and torch numbers into Python's; NaN and infinities into strings."""
    if hasattr(value, "item"):
        with contextlib.suppress(ValueError, RuntimeError):  # of several elements
            value = value.item()
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if not isinstance(value, str | int | float | None):
        raise TypeError(f"cannot keep {quoted(value)}: give numbers and strings")
    return value


def _restored(value):
    """Turn the strings that stand for NaN and infinities into numbers again."""
    if isinstance(value, dict):
        return {key: _restored(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_restored(entry) for entry in value]
    return float(value) if value in ("nan", "inf", "-inf") else value


def _result(entry: dict) -> Result:
    error = entry["error"]
    if error is not None:
        error = Error(**error | {k: float(error[k]) for k in ("relative", "largest")})
    seconds = tuple(entry["seconds"])
    changes = {"error": error, "seconds": seconds, "cold_s": float(entry["cold_s"])}
    return Result(**entry | changes)
