"""Plans applied to awkward models, and searches; the original is never touched."""

import ast
import dataclasses
import itertools
import math

import pytest
import torch
from torch import nn

from helpers import comparing, compiling, machine, models, optimizing, switches
from helpers.comparing import Comparison, Error, Result
from helpers.optimizing import Plan, apply, search

gpu = pytest.mark.gpu
DEVICE = "cuda" if machine.detect().device == "cuda" else "cpu"
EAGER = [Plan("BF16"), Plan("FP16"), Plan("BF16 autocast"), Plan("TF32")]


@dataclasses.dataclass
class Answer:
    scores: torch.Tensor
    hidden: list
    nothing: torch.Tensor | None = None


class Tokens(nn.Module):
    """Take token ids and a mask by name; return a dict."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(300, 16), nn.Linear(16, 5)

    def forward(self, ids, mask=None):
        x = self.embed(ids)
        x = x if mask is None else x * mask[..., None]
        return {"scores": self.head(x), "ids": ids, "nothing": None}


class Shared(nn.Module):
    """Use one weight twice; return a dataclass."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.last.weight = self.first.weight
        self.register_buffer("scale", torch.tensor(2.0))
        self.register_buffer("steps", torch.tensor(3))

    def forward(self, x):
        hidden = self.first(x).relu()
        return Answer(self.last(hidden) * self.scale, [hidden, (x.sum(),)])


class Nothing(nn.Module):
    """Have no parameters; return a tuple."""

    def forward(self, x, power=2):
        return x**power, x.mean(dim=-1)


class Buffers(nn.Module):
    """Have buffers only, one of them complex."""

    def __init__(self):
        super().__init__()
        self.register_buffer("turn", torch.polar(torch.ones(4), torch.arange(4.0)))
        self.register_buffer("shift", torch.randn(4, generator=seeded()))

    def forward(self, x):
        turned = torch.view_as_real(torch.view_as_complex(x.float()) * self.turn)
        return turned.to(self.shift.dtype) + self.shift[:, None]


class OnlyFP32(nn.Module):
    """Raise in half precision."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        if x.dtype != torch.float32:
            raise RuntimeError("not implemented for 'Half'")
        return self.linear(x)


class Overflows(nn.Module):
    """Leave FP16's range: Inf - Inf is NaN."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        big = self.linear(x) * 1e3 * 1e3
        return big / (big.abs().amax(dim=-1, keepdim=True) + 1)


class Breaks(nn.Module):
    """Ask for a value on the way: a graph break, and no CUDA graph."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        x = self.linear(x)
        return x * 2 if x.sum().item() > 0 else x / 2


def seeded():
    return torch.Generator().manual_seed(0)


def cases():
    torch.manual_seed(0)
    x, ids = torch.randn(3, 8), torch.randint(300, (2, 7))
    return {
        "token ids": (Tokens(), (ids,), {"mask": torch.ones(2, 7)}),
        "shared weights": (Shared(), (x,), {}),
        "no parameters": (Nothing(), (x,), {"power": 3}),
        "buffers only": (Buffers(), (torch.randn(2, 4, 2),), {}),
        "raises in half": (OnlyFP32(), (x,), {}),
        "overflows": (Overflows(), (x,), {}),
        "graph break": (Breaks(), (x,), {}),
        "CNN": (models.DigitsNet().train(), (torch.randn(3, 1, 8, 8),), {}),
    }


@pytest.fixture(params=list(cases()))
def case(request):
    """A model, its arguments; afterwards nothing about it may have changed."""
    model, args, named = cases()[request.param]
    model = model.to(DEVICE)
    args = tuple(x.to(DEVICE) for x in args)
    named = {k: v.to(DEVICE) if torch.is_tensor(v) else v for k, v in named.items()}
    before = [(k, v, v.clone(), v.dtype) for k, v in model.state_dict().items()]
    kept, modes = dict(model.state_dict()), [m.training for m in model.modules()]
    inputs = [x.clone() for x in args]
    set_before, grad = switches.state(), torch.is_grad_enabled()
    yield request.param, model, args, named
    for name, now, copy, dtype in before:
        assert now.data_ptr() == kept[name].data_ptr() and now.dtype == dtype
        assert torch.equal(now, copy), name
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(x, old) for x, old in zip(args, inputs, strict=True))
    assert all(p.requires_grad for p in model.parameters())
    assert switches.state() == set_before and torch.is_grad_enabled() == grad


def right_answer(model, args, named):
    """The model's own answer in eval mode, the model left in its mode."""
    modes = {m: m.training for m in model.modules()}
    with torch.no_grad(), switches.tf32(False, False):
        right = model.eval()(*args, **named)
    for module, mode in modes.items():
        module.training = mode
    return right


@pytest.mark.parametrize("plan", [Plan(), *EAGER], ids=str)
def test_apply_does_what_the_model_does(case, plan):
    name, model, args, named = case
    right = right_answer(model, args, named)
    run = apply(plan, model)
    if name == "raises in half" and "autocast" not in plan.precision:
        if plan.dtype != torch.float32:
            with pytest.raises(RuntimeError, match="not implemented for 'Half'"):
                run(*args, **named)
            return
    got = run(*args, **named)
    error = comparing.difference(got, right)
    if name == "overflows" and plan.precision == "FP16":
        assert error.nans
        return
    assert error.relative < (1e-6 if plan == Plan() else 3e-2)
    assert type(got) is type(right)
    if isinstance(right, dict):
        assert got["ids"].dtype == torch.int64 and got["nothing"] is None
        assert torch.equal(got["ids"], args[0])
    if isinstance(right, Answer):
        assert got.nothing is None and type(got.hidden[1]) is tuple
    for _, tensor in comparing.tensors(got):
        assert not tensor.requires_grad


@pytest.mark.parametrize("plan", [Plan("BF16"), Plan("FP16")], ids=str)
def test_whole_casts_cast_floats_alone(plan):
    mine = optimizing.prepared(plan, Shared())
    assert mine.first.weight is mine.last.weight, "no longer shared"
    assert mine.scale.dtype == plan.dtype and mine.steps.dtype == torch.int64
    assert optimizing.prepared(plan, Buffers()).turn.dtype == torch.complex64
    assert apply(plan, Nothing())(torch.ones(2))[0].dtype == plan.dtype


def test_fp32_is_fp32_for_other_models_too():
    model = nn.Linear(4, 4).double()
    assert apply(Plan(), model)(torch.ones(1, 4).double()).dtype == torch.float32
    assert model.weight.dtype == torch.float64


def test_layout_and_folding():
    model = models.DigitsNet().eval()
    for norm in (model.norm1, model.norm2, model.norm3):
        norm.running_mean.normal_(generator=seeded())
        norm.running_var.uniform_(0.5, 2, generator=seeded())
    x = torch.randn(2, 1, 8, 8, generator=seeded())
    right = model(x)
    folded = optimizing.prepared(Plan(folded=True), model)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in folded.modules())
    mine = optimizing.prepared(Plan(channels_last=True), model)
    assert mine.conv2.weight.is_contiguous(memory_format=torch.channels_last)
    seen = []
    mine = Plan(channels_last=True, folded=True)
    hooked = nn.Sequential(model)
    run = apply(mine, hooked)
    assert comparing.difference(run(x), right).relative < 1e-6
    layout = apply(Plan(channels_last=True), Layout(seen))
    layout(x.expand(2, 3, 8, 8).contiguous(), torch.ones(2, 3, 4))
    assert seen == [True, (12, 4, 1)], "images alone are laid out anew"


class Layout(nn.Module):
    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def __deepcopy__(self, memo):
        return self

    def forward(self, image, sequence):
        format = torch.channels_last
        self.seen += [image.is_contiguous(memory_format=format), sequence.stride()]
        return image


def test_a_model_that_cannot_be_traced_cannot_be_folded():
    with pytest.raises(Exception, match="(?i)trace|control flow"):
        apply(Plan(folded=True), Breaks())


def test_switches_are_set_during_a_call_and_put_back_after_an_error():
    seen = []

    class Looks(nn.Module):
        def forward(self, x):
            seen.append(switches.state() | {"grad": torch.is_inference_mode_enabled()})
            raise ValueError("as planned")

    for plan in (Plan(), Plan("TF32", cudnn_benchmark=True, fast_path=False)):
        before = switches.state()
        with pytest.raises(ValueError, match="as planned"):
            apply(plan, Looks())(torch.ones(1))
        assert switches.state() == before
    assert [s["float32_matmul_precision"] for s in seen] == ["highest", "high"]
    assert [s["cudnn.allow_tf32"] for s in seen] == [False, True]
    assert [s["cudnn.benchmark"] for s in seen] == [False, True]
    assert [s["mha fast path"] for s in seen] == [True, False]
    assert all(s["grad"] for s in seen)


@pytest.mark.parametrize(
    "plan", [Plan(compile="default"), Plan("BF16", compile="default")]
)
def test_compiled_plans(case, plan):
    name, model, args, named = case
    if not compiling.works():
        pytest.skip(compiling.works().why)
    if name == "raises in half" and plan.precision == "BF16":
        return
    right = right_answer(model, args, named)
    with compiling.fresh(), compiling.quiet():
        got = apply(plan, model)(*args, **named)
    assert comparing.difference(got, right).relative < 3e-2


# -------------------------------------------------------------------------------- plans


def every_plan():
    """All plans that can be, with a few values of each field."""
    values = itertools.product(
        optimizing.PRECISIONS,
        (False, True),
        (False, True),
        (True, False),
        (False, True),
        optimizing.MODES,
        (None, True),
        (False, True),
    )
    for value in values:
        try:
            yield Plan(*value)
        except ValueError:
            continue


def test_names_and_code_tell_plans_apart():
    plans = list(every_plan())
    assert len(plans) > 500
    assert len({str(plan) for plan in plans}) == len(plans)
    codes = {plan.code() for plan in plans}
    assert len(codes) == len(plans)
    for code in codes:
        names = {
            node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)
        }
        assert "helpers" not in code and {"copy", "torch", "tree_map"} <= names
        assert max(map(len, code.splitlines())) <= 88


def test_what_is_simpler_is_less_complex():
    order = [
        Plan(),
        Plan("BF16"),
        Plan("BF16", channels_last=True),
        Plan("BF16", compile="default"),
        Plan("BF16", compile="reduce-overhead"),
        Plan("BF16", compile="default", graph=True),
    ]
    counts = [plan.complexity for plan in order]
    assert counts == sorted(counts) and counts[0] == 0 and counts[1] == 1


@pytest.mark.parametrize(
    "options, words",
    [
        ({"precision": "bf16"}, "bf16"),
        ({"compile": "fast"}, "fast"),
        ({"compile": None}, "None"),
        ({"graph": True, "compile": "reduce-overhead"}, "graphs by itself"),
        ({"dynamic": True}, "compiled"),
        ({"channels_last": 1}, "channels_last=1"),
        ({"dynamic": "auto", "compile": "default"}, "auto"),
    ],
)
def test_bad_plans_are_refused(options, words):
    with pytest.raises((TypeError, ValueError), match=words):
        Plan(**options)


def test_apply_refuses_what_is_no_plan_and_no_model():
    with pytest.raises(TypeError, match="'BF16'"):
        apply("BF16", nn.Linear(2, 2))
    with pytest.raises(TypeError, match="function"):
        apply(Plan(), lambda x: x)


def pasted(plan):
    """Run a plan's code as a program of its own would."""
    names = {}
    exec(compile(plan.code(), "pasted", "exec"), names)
    return names["optimized"]


@pytest.mark.parametrize("plan", [Plan(), *EAGER], ids=str)
def test_pasted_code_gives_the_same_bits(case, plan):
    name, model, args, named = case
    if name in ("no parameters", "buffers only") and plan.autocast:
        return  # there is no parameter to ask for the device
    mine = apply(plan, model)
    with switches.restored():
        theirs = pasted(plan)(model)
        if name == "raises in half" and plan.dtype != torch.float32:
            with pytest.raises(RuntimeError):
                theirs(*args, **named)
            return
        got = dict(comparing.tensors(theirs(*args, **named)))
    for place, tensor in comparing.tensors(mine(*args, **named)):
        assert torch.equal(got[place], tensor) or tensor.isnan().any()


@pytest.mark.parametrize(
    "plan",
    [
        Plan(channels_last=True, folded=True),
        Plan("BF16", compile="default", channels_last=True),
        Plan(compile="default", dynamic=True, fast_path=False, cudnn_benchmark=True),
    ],
    ids=str,
)
def test_pasted_code_of_a_cnn(plan):
    if plan.compile and not compiling.works():
        pytest.skip(compiling.works().why)
    model = models.DigitsNet().to(DEVICE)
    x = torch.randn(2, 1, 8, 8, generator=seeded()).to(DEVICE)
    with compiling.fresh(), compiling.quiet(), switches.restored():
        mine, theirs = apply(plan, model)(x), pasted(plan)(model)(x)
    assert torch.equal(mine, theirs)


# ------------------------------------------------------------------------------- search


def comparison(times, errors=None, rounds=9):
    """A comparison with given seconds; each round's times differ by far less."""
    results = [
        Result(
            name,
            tuple(s * (1 + 1e-4 * i) for i in range(rounds)),
            0.0,
            Error((errors or {}).get(name, 0.0), 0.0),
        )
        for name, s in times.items()
    ]
    return Comparison(results, {"device": "none", "torch": "0", "date": "2000-01-01"})


def choose(times, errors=None):
    plans = {name: PLANS[name] for name in times}
    return str(optimizing.choose(comparison(times, errors), plans))


PLANS = {
    str(p): p
    for p in (
        Plan(),
        Plan("BF16"),
        Plan("FP16"),
        Plan("BF16", graph=True),
        Plan("FP16", graph=True),
        Plan("BF16", compile="default"),
        Plan("BF16", compile="default", graph=True),
    )
}


def test_nothing_more_complex_is_chosen_without_a_measurable_gain():
    assert choose({"FP32": 1.0, "BF16": 0.99, "FP16": 0.99}) == "FP32"
    assert choose({"FP32": 1.0, "BF16": 0.5, "BF16, graph": 0.495}) == "BF16"
    assert choose({"FP32": 1.0, "BF16": 0.5, "BF16, graph": 0.4}) == "BF16, graph"
    # 2 % at each step: the first is not measurable, both together are.
    steps = {"FP32": 1.0, "BF16": 0.5, "BF16, graph": 0.49}
    steps["BF16, compiled, graph"] = 0.48
    assert choose(steps) == "BF16, compiled, graph"
    assert choose({"FP32": 1.0, "BF16": 2.0}) == "FP32"
    # BF16 is no gain over FP32, though the third is, and is no gain over BF16.
    assert choose({"FP32": 1.0, "BF16": 0.98, "BF16, graph": 0.96}) == "BF16, graph"


def test_of_two_equally_simple_ones_the_more_exact_is_chosen():
    times = {"FP32": 1.0, "BF16": 0.5, "FP16": 0.5}
    assert choose(times, {"BF16": 1e-2, "FP16": 1e-3}) == "FP16"
    assert choose(times, {"BF16": 1e-3, "FP16": 1e-2}) == "BF16"


def test_of_two_equally_simple_ones_the_faster_is_chosen():
    errors = {"BF16, compiled": 1e-2, "FP16, graph": 1e-3}
    times = {"FP32": 1.0, "BF16, compiled": 0.49, "FP16, graph": 0.5}
    assert choose(times, errors) == "BF16, compiled"
    times = {"FP32": 1.0, "BF16": 0.5, "BF16, compiled": 0.49, "FP16, graph": 0.5}
    assert choose(times, errors) == "BF16"  # not enough to be worth compiling


@pytest.fixture
def scripted(monkeypatch):
    """Let searches meet given times and errors instead of running anything."""
    monkeypatch.setattr(optimizing, "_missing", lambda plan: "")
    monkeypatch.setattr(optimizing, "apply", lambda plan, model: Scripted(plan, model))
    can = machine.supports
    monkeypatch.setattr(
        machine,
        "supports",
        lambda what, m=None: machine.Support(
            what == "CUDA graphs" or bool(can(what, m)), "scripted"
        ),
    )
    script = {}

    def compare(variants, reference=None, **options):
        times, errors = {}, {}
        for name, call in variants.items():
            plan = call.func.plan
            times[name], errors[name] = script["cost"](plan)
        made = comparison(times, errors)
        failed = script.get("fails", lambda plan: "")
        results = [
            Result(n, failure=failed(variants[n].func.plan))
            if failed(variants[n].func.plan)
            else made[n]
            for n in made
        ]
        return Comparison(results, made.conditions)

    monkeypatch.setattr(optimizing, "compare", compare)
    return script


class Scripted:
    def __init__(self, plan, model):
        self.plan, self.model = plan, model

    def __call__(self, x):
        return torch.ones(2)


def cost(plan):
    """Times of an imaginary GPU: launches first, then arithmetic."""
    error = {"FP32": 0.0, "TF32": 3e-4, "FP16": 5e-4, "BF16": 4e-3}
    work = {"FP32": 8.0, "TF32": 4.0, "FP16": 2.0, "BF16": 2.0}[plan.precision[:4]]
    work *= 0.7 if plan.compile else 1.0
    launches = 1.0 if plan.graph or plan.compile == "reduce-overhead" else 9.0
    return 1e-3 * max(work, launches), error[plan.precision[:4]]


def test_a_search_finds_the_best_of_a_known_landscape(scripted):
    scripted["cost"] = cost
    found = search(
        nn.Linear(2, 2).to(DEVICE), torch.ones(1, device=DEVICE), progress=False
    )
    assert found.best.precision in ("BF16", "FP16") and found.best.compile
    assert found.best.graph or found.best.compile == "reduce-overhead"
    assert found.speedup.median == pytest.approx(9 / 1.4)
    assert not found.interrupted and len(found.trials) >= 10
    again = search(
        nn.Linear(2, 2).to(DEVICE), torch.ones(1, device=DEVICE), progress=False
    )
    assert again.best == found.best
    assert [t.plan for t in again.trials] == [t.plan for t in found.trials]
    assert "best" in str(found) and "baseline" in str(found)
    assert "&nbsp;" in found._repr_html_()


def test_a_tighter_budget_changes_the_plan(scripted):
    scripted["cost"] = cost
    model, x = nn.Linear(2, 2).to(DEVICE), torch.ones(1, device=DEVICE)
    for budget, allowed in (
        (1e-3, {"FP16", "TF32"}),
        (4e-4, {"TF32"}),
        (1e-5, {"FP32"}),
    ):
        found = search(model, x, max_error=budget, progress=False)
        assert found.best.precision in allowed
        over = [t for t in found.trials if "over the budget" in t.verdict]
        assert {t.plan.precision for t in over}.isdisjoint(allowed) and over
        assert all(t.plan != found.best for t in over)


def test_failures_are_rows_and_the_search_goes_on(scripted):
    scripted["cost"] = cost
    scripted["fails"] = lambda plan: "OutOfMemoryError: too much" if plan.graph else ""
    model, x = nn.Linear(2, 2).to(DEVICE), torch.ones(1, device=DEVICE)
    found = search(model, x, progress=False)
    failed = [t for t in found.trials if t.plan.graph]
    assert failed and all("OutOfMemoryError" in t.verdict for t in failed)
    assert found.best.compile == "reduce-overhead" and found.best.dtype.itemsize == 2
    assert "OutOfMemoryError" in str(found)


def test_an_interrupt_keeps_what_was_found(scripted):
    tried = []

    def interrupted(plan):
        tried.append(plan)
        if plan.graph:
            raise KeyboardInterrupt
        return cost(plan)

    def slow(plan):
        seconds, error = interrupted(plan)
        return (seconds / 4 if plan.precision == "BF16" else seconds), error

    scripted["cost"] = slow
    model, x = nn.Linear(2, 2).to(DEVICE), torch.ones(1, device=DEVICE)
    found = search(model, x, progress=False)
    assert found.interrupted and found.best == Plan("BF16")
    assert found.speedup.median == pytest.approx(4)


def test_time_is_kept(scripted, monkeypatch):
    scripted["cost"] = cost
    clock = itertools.count(step=10.0)
    monkeypatch.setattr(optimizing.time, "perf_counter", lambda: next(clock))
    model, x = nn.Linear(2, 2).to(DEVICE), torch.ones(1, device=DEVICE)
    found = search(model, x, max_seconds=45, progress=False)
    skipped = [t for t in found.trials if t.verdict.startswith("not tried")]
    assert skipped and "45 s" in skipped[0].verdict
    assert all(t.result is None for t in skipped)


def test_long_trials_are_not_begun_shortly_before_the_end(scripted, monkeypatch):
    """Each trial takes 30 s: none may begin later than 30 s before the end."""
    scripted["cost"] = cost
    now = [0.0]
    monkeypatch.setattr(optimizing.time, "perf_counter", lambda: now[0])
    scripted_compare = optimizing.compare

    def slow(variants, *args, **options):
        now[0] += 30.0
        return scripted_compare(variants, *args, **options)

    monkeypatch.setattr(optimizing, "compare", slow)
    model, x = nn.Linear(2, 2).to(DEVICE), torch.ones(1, device=DEVICE)
    found = search(model, x, max_seconds=200, progress=False)
    ran = [trial for trial in found.trials if trial.result]
    assert 2 <= len(ran) < len(found.trials)
    assert now[0] <= 200 + 30, "the final alone may come on top"


@pytest.mark.parametrize("name", list(cases()))
def test_searches_of_awkward_models_end_and_change_nothing(name, monkeypatch):
    # Formats that this machine only emulates are tried, too.
    monkeypatch.setattr(optimizing, "_missing", lambda plan: "")
    model, args, named = cases()[name]
    model = model.to(DEVICE)
    args = tuple(x.to(DEVICE) for x in args)
    named = {k: v.to(DEVICE) if torch.is_tensor(v) else v for k, v in named.items()}
    inputs = args[0] if not named else args
    if named:
        model = Named(model, named)
    before, state = switches.state(), [v.clone() for v in model.state_dict().values()]
    plans = [
        Plan("FP16"),
        Plan("BF16"),
        Plan("BF16 autocast"),
        Plan("BF16", folded=True),
    ]
    found = search(model, inputs, max_error=3e-2, plans=plans, progress=False)
    assert switches.state() == before
    for now, then in zip(model.state_dict().values(), state, strict=True):
        assert torch.equal(now, then)
    by_plan = {t.plan: t for t in found.trials}
    assert set(plans) < set(by_plan)
    if name == "overflows":
        assert "NaN" in by_plan[Plan("FP16")].verdict
    if name == "graph break":
        assert by_plan[Plan("BF16", folded=True)].verdict.startswith("failed")
    if name == "raises in half":
        assert "not implemented" in by_plan[Plan("BF16")].verdict
        assert not by_plan[Plan("BF16 autocast")].verdict
    assert found.best == Plan() or found.speedup.measurable


class Named(nn.Module):
    def __init__(self, model, named):
        super().__init__()
        self.model, self.named = model, named

    def forward(self, *args):
        return self.model(*args, **self.named)


def test_stale_answers_are_found_on_other_inputs(monkeypatch):
    """A callable that remembers its first answer is right on the example alone."""
    honest = optimizing.apply

    def forgetful(plan, model):
        run, answers = honest(plan, model), []
        if plan == Plan():
            return run

        def call(x):
            answers.append(run(x)) if not answers else None
            return answers[0]

        return call

    monkeypatch.setattr(optimizing, "apply", forgetful)
    monkeypatch.setattr(optimizing, "_missing", lambda plan: "")
    model, x = nn.Linear(8, 8).to(DEVICE), torch.randn(4, 8, generator=seeded())
    found = search(model, x.to(DEVICE), plans=[Plan("BF16")], progress=False)
    assert found.best == Plan() and "budget" in found.trials[1].verdict


def test_searches_take_tensors_tuples_and_dicts(capsys):
    model = nn.Linear(4, 4).to(DEVICE)
    x = torch.ones(2, 4, device=DEVICE)
    for inputs in (x, (x,), [x], {"input": x}):
        found = search(model, inputs, plans=[], progress=False)
        assert found.best == Plan() and len(found.trials) == 1
    assert capsys.readouterr().out == ""
    search(model, x, plans=[Plan(channels_last=True)])
    shown = capsys.readouterr()
    assert "1/1" in shown.out and shown.err == ""


@pytest.mark.parametrize(
    "change, error, words",
    [
        ({"model": "resnet"}, TypeError, "resnet"),
        ({"example_inputs": None}, TypeError, "None"),
        ({"max_error": 0}, ValueError, "max_error=0"),
        ({"max_seconds": "long"}, ValueError, "long"),
        ({"plans": ["BF16"]}, TypeError, "'BF16'"),
        ({"example_inputs": torch.ones(3, 3)}, ValueError, "fails in FP32"),
        ({"example_inputs": torch.full((1, 4), math.nan)}, ValueError, "NaN"),
        ({"model": nn.Linear(4, 4).to("meta")}, ValueError, "meta"),
    ],
)
def test_bad_arguments_of_a_search_are_refused(change, error, words):
    given = {"model": nn.Linear(4, 4), "example_inputs": torch.ones(1, 4)} | change
    if DEVICE == "cuda":
        pytest.skip("the models here are on the CPU")
    with pytest.raises(error, match=words):
        search(**given, progress=False)


# --------------------------------------------------------------------------- on a GPU


GRAPHS = [
    Plan("FP32", graph=True),
    Plan("BF16", graph=True),
    Plan("FP16 autocast", graph=True),
    Plan("BF16", compile="default", graph=True),
    Plan("BF16", compile="reduce-overhead"),
]


@gpu
@pytest.mark.parametrize("plan", GRAPHS, ids=str)
def test_graphs_answer_new_inputs_and_keep_old_answers(case, plan):
    name, model, args, named = case
    if name == "raises in half" and plan.dtype != torch.float32:
        return
    with compiling.fresh(), compiling.quiet():
        run = apply(plan, model)
        if name == "graph break" and plan.graph:
            with pytest.raises(RuntimeError, match="cannot be captured"):
                run(*args, **named)
            return
        right = right_answer(model, args, named)
        first = run(*args, **named)
        kept = {k: v.clone() for k, v in comparing.tensors(first)}
        moved = tuple(x.roll(1) for x in args)
        second = run(*moved, **named)
        for place, tensor in comparing.tensors(first):
            assert torch.equal(tensor, kept[place]) or tensor.isnan().any()
        if name == "overflows" and "FP16" in plan.precision:
            return
        moved_right = right_answer(model, moved, named)
    assert comparing.difference(first, right).relative < 3e-2
    assert comparing.difference(second, moved_right).relative < 3e-2
    assert type(second) is type(right)


@gpu
@pytest.mark.parametrize("plan", GRAPHS, ids=str)
def test_pasted_graphs_give_the_same_bits(plan):
    model = models.DigitsNet().cuda()
    x, y = torch.randn(2, 3, 1, 8, 8, device="cuda").unbind()
    with compiling.fresh(), compiling.quiet(), switches.restored():
        mine, theirs = apply(plan, model), pasted(plan)(model)
        for inputs in (x, y, y[:2]):
            assert torch.equal(mine(inputs), theirs(inputs))


@gpu
def test_graphs_are_one_for_each_shape_up_to_a_limit():
    run = apply(Plan(graph=True), nn.Linear(4, 4).cuda())
    for n in range(1, optimizing.MOST_GRAPHS + 1):
        assert run(torch.ones(n, 4, device="cuda")).shape == (n, 4)
    with pytest.raises(RuntimeError, match="shapes that stay the same"):
        run(torch.ones(99, 4, device="cuda"))
    graph = run.in_place(torch.ones(2, 4, device="cuda"))
    graph.inputs[0].fill_(3.0)
    by_hand = graph.replay()[0].clone()
    assert torch.equal(by_hand, run(torch.full((2, 4), 3.0, device="cuda")))


@gpu
def test_weights_of_a_captured_plan_are_counted():
    model = nn.Linear(64, 64).cuda()
    run = apply(Plan("BF16", graph=True), model)
    assert comparing.weight_bytes(run) == 2 * (64 * 64 + 64)


@gpu
def test_inputs_with_gradients_leave_none_in_a_graph():
    run = apply(Plan(graph=True), nn.Linear(4, 4).cuda())
    x = torch.ones(2, 4, device="cuda", requires_grad=True)
    assert not run(x).requires_grad and not run.in_place(x).inputs[0].requires_grad


@gpu
def test_a_search_on_the_gpu_beats_the_baseline():
    torch.manual_seed(0)
    model, x = models.SimpleModel().cuda(), torch.randn(32, 1024, device="cuda")
    before = torch.cuda.memory_allocated()
    found = search(model, x, max_seconds=60, progress=False)
    assert found.best.graph and found.speedup.median > 1.2
    del found
    optimizing._free()
    assert torch.cuda.memory_allocated() - before < 2**26


# --- described GPUs ---------------------------------------------------------------

NATIVE = {"V100": "FP32 FP16", "T4": "FP32 FP16", "A100": "FP32 TF32 BF16 FP16"}
NATIVE |= dict.fromkeys(("RTX 3060", "L4", "H200", "B200", "RTX 5090"), NATIVE["A100"])


@pytest.mark.parametrize("name", NATIVE)
def test_a_search_tries_what_the_gpu_executes_and_nothing_emulated(monkeypatch, name):
    there = dataclasses.replace(machine.gpu(name), described=False)
    monkeypatch.setattr(machine, "detect", lambda: there)
    monkeypatch.setattr(compiling, "works", lambda: machine.Support(True, "described"))
    tried = [p for p in optimizing.PRECISIONS if not optimizing._missing(Plan(p))]
    assert list(dict.fromkeys(p.split()[0] for p in tried)) == NATIVE[name].split()
    for asked in itertools.product(machine.KINDS, machine.SHAPES, machine.BATCHES):
        advised = Plan(**machine.recommend(*asked).options)
        assert not optimizing._missing(advised), advised
