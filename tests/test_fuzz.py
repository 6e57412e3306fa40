"""Fuzz every public function and method: junk is refused in words, not by accident.

What to call is found by introspection, so a new function is fuzzed as soon as it is
there. An example is a valid call, from ``BY_TYPE``, ``BY_NAME`` and ``BY_CALL``, whose
first or second argument, or both, become junk or something close to what they were. It
must return, or raise a TypeError or ValueError that quotes the junk, or an error that
its docstring names. ``FUZZ_EXAMPLES`` sets how many examples each callable gets.
"""

import contextlib
import decimal
import importlib
import inspect
import math
import os
import pathlib
import re
import signal
import types
import typing

import matplotlib
import numpy as np
import pandas
import pytest
import sklearn  # noqa: F401 (its import sets environment variables)
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import helpers
from helpers import (
    claims,
    comparing,
    compiling,
    formats,
    machine,
    optimizing,
    plots,
    probing,
    records,
    roofline,
    switches,
)

EXAMPLES, LIMIT_S = int(os.environ.get("FUZZ_EXAMPLES", "24")), 5
TRIED = {}  # callable → how many inputs


class Boom(Exception):
    """What a callable of the caller's own raises: it passes through."""


class Hang(BaseException):
    """What a call that takes too long raises."""


def boom(*args, **named):
    raise Boom("mine")


def call(*args, **named):
    return torch.ones(2)


class Anything(torch.nn.Module):
    forward = call


def result(name="FP32"):
    return comparing.Result(name, (1e-3,) * 9, 0.1, comparing.Error(1e-3, 1e-3))


# fmt: off
X, NAN, BIG = torch.linspace(-1, 1, 8).view(2, 4), math.nan, 10**400
HERE = machine.detect().device
JUNK = [None, True, False, 0, -1, 3, -(2**63), 2**31, 2**63, BIG, 0.5, NAN, math.inf,
    -math.inf, 1e308, 5e-324, 1j, "", " ", "nan", "FP12", "bf16", "1e400", "a/b", "\0",
    b"FP16", b"", [], {}, (), set(), [1], [None], (1, "a"), {"a": 1}, {1: NAN}, [[]],
    {"a": {}}, {"a": []}, {"a": "b"}, [NAN], [-1.0, 2.0], [0], ["a"], object(), Boom,
    boom, call, ValueError("x"), decimal.Decimal("sNaN"), pathlib.Path("x"), range(3),
    np.array(1.5), np.arange(3), np.zeros((2, 0)), np.array(["a"]), np.float32(1), X,
    torch.tensor(2), torch.empty(0), torch.ones(2, 2, dtype=torch.bfloat16), iter([]),
    torch.tensor([NAN, 1]), torch.ones(2, dtype=torch.complex64), torch.float16,
    torch.ones(1, 1, 1, 1, dtype=torch.int8), torch.zeros(2).to_sparse(), slice(1),
    torch.zeros(3).to(torch.float8_e4m3fn), torch.ones(2, requires_grad=True),
    Anything()]
PAIR = comparing.Comparison([result(), result("BF16")], comparing.conditions())
PEAKS, WORK = roofline.Peaks(1e-6, 1e9, {"FP32": 1e9}), roofline.Work(9, 9, 9, 9, 1)
PLANS = {"FP32": optimizing.Plan(), "BF16": optimizing.Plan("BF16")}
ONE, PLAN, QKV = comparing.Ratio(1.0, 0.9, 1.1), PLANS["FP32"], torch.ones(1, 2, 4, 8)
TRIALS = tuple(optimizing.Trial(p, result(str(p)), ONE) for p in PLANS.values())
BARS, CURVES = {"FP16": 1.0, "BF16": 2.0}, {"FP16": [1.0, 2.0, 4.0]}
POINTS, FRAME = {"FP16": (1.0, 1e-3), "BF16": (2.0, 0.0)}, pandas.DataFrame({"a": [1]})

LAYER = probing.Layer("fc", "Linear", "FP32", "FP32", 1.0, 0, 0)


def kept(data=None, pair=None):
    return records.Record("00/x", {"note": "a run"}, pair, data or {})


BY_TYPE = {
    int: 1, float: 1.0, str: "w", bool: True, dict: {"a": 1}, tuple: (), list: [],
}
BY_NAME = {
    "call": call, "format": "FP16", "value": 1.5, "names": ("FP16", "BF16"),
    "model": torch.nn.Linear(4, 4), "claim": claims.get("G1-1"), "id": "G1-1",
    "work": WORK, "peaks": PEAKS, "plan": PLAN, "mine": PAIR, "output": X,
    "reference": X, "tensor": X, "frame": FRAME, "table": FRAME, "best": PLAN,
    "final": PAIR, "results": PAIR, "trials": TRIALS, "advice": (), "kind": "CNN",
    "shapes": "fixed", "batch": "large", "what": "BF16", "args": (X,), "inputs": (X,),
    "named": {}, "options": {}, "guess": BARS, "seconds": 1e-3, "code": 3,
    "arguments": (), "environment": {}, "sizes": {"n": 2},
}
BY_CALL = {
    "claims.table": {"chapter": ""}, "claims.verdict": {"holds": True},
    "comparing.Result": {"seconds": (1e-3, 2e-3), "error": comparing.Error(0.1, 1.0)},
    "comparing.Comparison": {"results": [result(), result("BF16")]},
    "comparing.Comparison.speedup": {"name": "BF16", "over": "FP32"},
    "comparing.compare": {"variants": {"a": call}, "rounds": 3, "mode": "grad",
        "reference": torch.ones(2)}, "comparing.reason": {"failure": ValueError("x")},
    "compiling.Code": {"kernels": ("k",)},
    "compiling.new_process": {"code": "print(1)"},
    "compiling.ColdStart": {"code": compiling.Code(("k",), 1, "t")},
    "exercises.check": {"answer": 1, "right": call},
    "explorers.FloatExplorer.show": {"number": formats.decode(3, "FP16"), "asked": 1.5},
    "formats.Format": {"exponent_bits": 5, "significand_bits": 10},
    "formats.Number": {"format": formats.FP16, "kind": "normal"},
    "formats.get": {"name": "FP16"}, "probing.Layer": {"output": "FP32"},
    "graphs.Captured": {"graph": types.SimpleNamespace(replay=call)},
    "graphs.capture": {"warmup": 1, "inputs": (X.to(HERE),)},
    "machine.Machine": {"device": "cpu", "capability": (8, 0)},
    "machine.attention": {"query": QKV, "key": QKV, "value": QKV,
        "options": {"is_causal": True, "scale": 0.5}},
    "machine.gpu": {"name": "T4", "kernels": ("sm_75",)}, "machine.fit": {"share": 0.5},
    "models.OptimizedTransformerLayer": {"d_model": 8, "nhead": 2},
    "models.transformer": {"layers": 1, "width": 8, "heads": 2},
    "models.train": {"images": torch.ones(4, 4), "labels": torch.ones(4).long()},
    "models.vision": {"name": "resnet18"},
    "optimizing.Plan": {"compile": "default", "dynamic": True},
    "optimizing.Trial": {"result": result(), "speedup": ONE},
    "optimizing.choose": {"plans": PLANS},
    "optimizing.search": {"model": torch.nn.Linear(4, 4).to(HERE),
        "example_inputs": X.to(HERE), "plans": [], "progress": False},
    "plots.bars": {"values": BARS, "reference": kept(BARS), "limit": 1.0,
        "spread": {"FP16": (0.5, 2.0)}, "words": {"FP16": "w"}},
    "plots.bit_layout": {"names": ("FP16", "TF32")},
    "plots.clocks": {"readings": BARS, "truth": "FP16"},
    "plots.decisions": {"steps": [("q?", "yes", "there")]},
    "plots.ladder": {"steps": BARS, "alone": BARS, "unclear": ("FP16",),
        "reference": kept(BARS)},
    "plots.lines": {"x": [1, 2, 4], "series": CURVES, "truth": [1.0, 2.0, 3.0],
        "predicted": CURVES, "log": "xy", "guides": CURVES, "reference": kept({"x": [1,
        2], "FP16": [1, 2]})},
    "plots.memory": {"curves": {"FP16": [(0.0, 10), (1.0, 0)]}},
    "plots.plane": {"points": POINTS, "reference": kept(POINTS)},
    "plots.ratios": {"trials": {"a": [1.0, 1.1]}},
    "plots.roofline": {"points": {"FP16": (WORK, 1e-3)}, "format": "FP32"},
    "plots.search": {"found": optimizing.Search(PLAN, TRIALS, PAIR, 0.1, 1.0)},
    "plots.speed_and_error": {"reference": kept(pair=PAIR)},
    "plots.stacked": {"counts": {"a": {"good": 1, "bad": 2}}},
    "plots.timeline": {"rows": {"a": [(0.0, 1e-3)]}},
    "probing.Probe": {"layers": (LAYER,)},
    "probing.probe": {"model": Anything(), "inputs": (X,)},
    "records.Record": {"conditions": {"device": "d", "torch": "2", "date": "x"}},
    "records.beside": {"name": "00/x", "found": {"fact": 1.0}},
    "records.load": {"name": "00/workloads"}, "records.reference": {"name": "00/x"},
    "records.save": {"name": "00/x", "run": {"fact": 1.0}},
    "records.side_by_side": {"other": kept(pair=PAIR)},
    "roofline.Peaks": {"flops_per_s": {"FP32": 1e9}},
    "roofline.bound": {"format": "FP32"},
    "roofline.measure_peaks": {"names": ("FP32",)},
    "switches.around_call": {"wanted": {"matmul": "high", "cudnn": True}},
    "switches.matmul_precision": {"precision": "high"},
}
# What takes as long as it is told to is not told to take long.
PATIENT = {"calls", "epochs", "seconds", "rounds", "at_most", "max_seconds"}
# fmt: on


def public():
    """Find the callables: name → (callable, its signature without ``self``)."""
    found = {}
    for module in map(
        importlib.import_module, (f"helpers.{m}" for m in helpers.MODULES)
    ):
        for name, thing in vars(module).items():
            own = getattr(thing, "__module__", "") == module.__name__
            if name.startswith("_") or not own or not callable(thing):
                continue
            path = f"{module.__name__.removeprefix('helpers.')}.{name}"
            found[path] = thing
            for method in vars(thing) if inspect.isclass(thing) else ():
                # `forward` is PyTorch's, and raises what PyTorch does.
                if inspect.isfunction(vars(thing)[method]) and method != "forward":
                    found |= {} if method[0] == "_" else {f"{path}.{method}": thing}
    return found


PUBLIC = public()


def valid(path):
    """Return a valid call: argument → value, and the signature."""
    thing, method = PUBLIC[path], path.split(".")[2:]
    function = getattr(thing, method[0]) if method else thing
    parameters = dict(inspect.signature(function).parameters)
    if method:
        parameters.pop("self")
    mine = BY_CALL.get(path, {})
    values = {}
    for name, parameter in parameters.items():
        if name in mine:
            values[name] = mine[name]
        elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            values[name] = BY_NAME[name]
        elif parameter.default is not parameter.empty:
            if "factory" not in str(parameter.default):  # of a dataclass
                values[name] = parameter.default
        elif name in BY_NAME:
            values[name] = BY_NAME[name]
        else:
            kind = parameter.annotation
            while typing.get_origin(kind) is typing.Annotated:
                kind = typing.get_args(kind)[0]
            values[name] = BY_TYPE.get(typing.get_origin(kind) or kind)
    return parameters, values


def near(value):
    """List what is close to a value, and wrong more often than not."""
    if isinstance(value, str):
        return [value.swapcase(), value[:-1], f"{value}x", [value], value.encode()]
    if isinstance(value, int | float):
        return [-value, value + 1, f"{value}", [value], 1.0 * value, not value, None]
    if isinstance(value, torch.Tensor):
        kinds = [value.double(), value.long(), value.bool()]
        kinds += [value.cpu().numpy(), value * NAN, value[:0], value[None], value[0]]
        return [*kinds, value.tolist()]
    kinds = [] if callable(value) else [type(value)]
    return [*kinds, [value], {"FP16": value}, f"{value}", None]


@st.composite
def wrong(draw, value, junk):
    """Draw something in a value's stead, or in the stead of a part; add it to junk."""
    if isinstance(value, dict | list | tuple) and value and draw(st.booleans()):
        mapping = isinstance(value, dict)
        items = dict(value) if mapping else list(value)
        place = draw(st.sampled_from(list(items) if mapping else range(len(items))))
        if mapping and draw(st.integers(0, 3)) == 0:
            items[draw(st.sampled_from([1, None, "tf32"]))] = items.pop(place)
            junk.append(list(items)[-1])
        else:
            items[place] = draw(wrong(items[place], junk))
        return items if mapping else type(value)(items)
    free = st.integers(-99, 99) | st.floats(-1e9, 1e9) | st.text(max_size=9)
    junk.append(draw(st.sampled_from(near(value)) | st.sampled_from(JUNK) | free))
    return junk[-1]


def patient(value):
    """Return whether a call told to take this long does not take long."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return not number or not 5 < value < math.inf


def make(path, parameters, values):
    """Make a call and what belongs to it: enter a block, drain a generator, look on."""
    thing, method = PUBLIC[path], path.split(".")[2:]
    if method:
        thing = getattr(thing(**valid(path.rpartition(".")[0])[1]), method[0])
    args, named = [], {}
    flat = any(p.kind == p.VAR_POSITIONAL for p in parameters.values())
    for name, value in values.items():
        kind = parameters[name].kind
        if kind == inspect.Parameter.VAR_POSITIONAL:
            args += value if isinstance(value, tuple) else (value,)
        elif kind == inspect.Parameter.VAR_KEYWORD:
            plain = isinstance(value, dict) and all(isinstance(k, str) for k in value)
            more = value if plain else {"extra": value}
            named |= {k: v for k, v in more.items() if k not in parameters}
        elif flat and kind != inspect.Parameter.KEYWORD_ONLY:
            args.append(value)
        else:
            named[name] = value
    made = thing(*args, **named)
    if inspect.isgenerator(made):
        list(made)
    elif hasattr(made, "__enter__") and not isinstance(made, torch.Tensor):
        with made:
            pass
    elif inspect.isclass(thing) and not method:
        str(made), repr(made), hasattr(made, "_repr_html_") and made._repr_html_()
        for name, part in vars(thing).items():
            if isinstance(part, property):
                getattr(made, name)


def quotes(message, value):
    """Say whether a message has a value in it, be it shortened."""
    if isinstance(value, torch.Tensor | np.ndarray) and "sparse" not in repr(value):
        if quotes(message, [value.tolist(), *(value if value.ndim else ())]):
            return True
    if isinstance(value, dict | list | tuple | range):
        parts = [*value, *(value.values() if isinstance(value, dict) else ())]
        if any(quotes(message, part) for part in parts):
            return True
    words = [repr(value), str(value), repr(str(value))]
    if isinstance(value, torch.Tensor | np.ndarray):
        words += [str(value.dtype), str(tuple(value.shape))]
    # Where shapes are what differs, these: of a number, and of a list, by place.
    words += ["'': ()"] * isinstance(value, int | float)
    words += ["{'[0]", "{}"] * isinstance(value, list | tuple)
    return any(" ".join(w.split())[:20] in message for w in words if w.strip())


def complaint(path, error, junk):
    """Return what is wrong with an error; "" if it is a refusal as it should be."""
    message, thing = " ".join(str(error).split()), PUBLIC[path]
    if isinstance(error, Boom):
        return ""
    if isinstance(error, TypeError | ValueError):
        good = any(quotes(message, value) for value in junk)
        return "" if good else f"does not quote: {error!r}"
    doc = inspect.getdoc(getattr(thing, path.split(".")[-1], thing)) or ""
    named = [kind.__name__ for kind in type(error).__mro__[:-2]]
    documented = any(re.search(rf"\b{name}\b", doc) for name in named)
    return "" if documented else f"raises {error!r}"


def state():
    """Return every global switch that a call might leave changed."""
    return switches.state() | {
        "dtype": torch.get_default_dtype(),
        "grad": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(),
        "figures": plots.plt.get_fignums(),
        "look": dict(matplotlib.rcParams),
        "environment": dict(os.environ),
        "folder": os.getcwd(),
    }


@contextlib.contextmanager
def at_most(seconds):
    def stop(*_):
        raise Hang(f"no end in {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def compared(calls, *args, **options):
    return comparing.Comparison([result(name) for name in calls], {})


@pytest.fixture
def unchanged(monkeypatch, tmp_path, capsys):
    """Give a block around one call that sees to the global switches; no slow work."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(BY_NAME, "folder", tmp_path)
    yes = machine.Support(True, "as if")
    monkeypatch.setattr(compiling, "works", lambda: yes)
    monkeypatch.setattr(compiling, "captures", lambda: yes)
    monkeypatch.setattr(torch, "compile", lambda f, **options: f)
    monkeypatch.setattr(comparing, "_warm_up", lambda call: None)
    monkeypatch.setattr(roofline, "_fastest", lambda call, calls: 1.0)
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", boom)
    monkeypatch.setattr(optimizing, "compare", compared)

    @contextlib.contextmanager
    def block():
        before = state()
        try:
            with at_most(LIMIT_S):
                yield
            plots.plt.close("all")  # a chart that was drawn stays for `plt.show`
        finally:
            assert state() == before
            capsys.readouterr()

    return block


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", PUBLIC)
def test_junk_is_refused_in_words(path, unchanged):
    parameters, values = valid(path)
    with unchanged():
        try:
            make(path, parameters, values)
        except RuntimeError as error:  # no GPU, or, as if, no compiler
            assert path in ("graphs.capture", "compiling.generate"), error
    if not parameters:
        return

    @given(st.data())
    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def fuzz(data):
        junk, these = [], dict(values)
        names = st.lists(st.sampled_from(list(values)), min_size=1, max_size=2)
        for name in data.draw(names):
            these[name] = data.draw(wrong(values[name], junk))
            if name in PATIENT and not patient(these[name]):
                these[name] = NAN
                junk.append(NAN)
        TRIED[path] = TRIED.get(path, 0) + 1
        with unchanged():
            try:
                make(path, parameters, these)
            except Exception as error:
                plots.plt.close("all")
                said = complaint(path, error, junk)
                assert not said, f"{path}({these}) {said}"

    fuzz()


def test_as_many_inputs_were_tried_as_there_should_be(pytestconfig):
    """Report the count; a callable with few values has fewer examples than asked."""
    if not TRIED:
        pytest.skip("the fuzz did not run")
    tried = sum(TRIED.values())
    said = f"fuzz: {tried} inputs to {len(TRIED)} callables"
    pytestconfig.get_terminal_writer().line(f"\n{said}")
    assert tried > 0.8 * EXAMPLES * len(TRIED), said
