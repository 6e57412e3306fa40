"""helpers.switches: set inside, put back after, whoever else has touched them."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from helpers import switches

NEWER = hasattr(torch.backends.cuda.matmul, "fp32_precision")
needs_newer = pytest.mark.skipif(not NEWER, reason="torch 2.9 brought fp32_precision")
CHOICES = list(itertools.product((None, True, False), repeat=2))


def effective():
    """Return everything that decides precision, as PyTorch itself reports it."""
    found = {"fast path": torch.backends.mha.get_fastpath_enabled()}
    found["benchmark"] = torch.backends.cudnn.benchmark
    found["limit"] = torch.backends.cudnn.benchmark_limit
    for name, read in {
        "precision": torch.get_float32_matmul_precision,
        "matmul": lambda: torch.backends.cuda.matmul.allow_tf32,
        "cudnn": lambda: torch.backends.cudnn.allow_tf32,
    }.items():
        try:
            found[name] = read()
        except RuntimeError:
            found[name] = "refused"
    if NEWER:
        found["general"] = torch.backends.fp32_precision
        for name in ("cudnn", "mkldnn"):
            found[f"{name}, general"] = getattr(torch.backends, name).fp32_precision
        for owner in (torch.backends.cudnn, torch.backends.mkldnn):
            for part in ("conv", "rnn", "matmul"):
                if hasattr(owner, part):
                    key = f"{owner.__name__}.{part}"
                    found[key] = getattr(owner, part).fp32_precision
        found["cuda"] = torch.backends.cuda.matmul.fp32_precision
    return found


@pytest.fixture(autouse=True)
def untouched():
    """Fail a test that leaves a switch behind, and put it back for the next one."""
    before = effective()
    yield
    assert effective() == before


@pytest.mark.parametrize("matmul, cudnn", CHOICES)
def test_tf32_is_as_asked_inside(matmul, cudnn):
    before = effective()
    with switches.tf32(matmul=matmul, cudnn=cudnn):
        allowed = torch.backends.cuda.matmul.allow_tf32
        assert allowed == (before["matmul"] if matmul is None else matmul)
        allowed = torch.backends.cudnn.allow_tf32
        assert allowed == (before["cudnn"] if cudnn is None else cudnn)


@pytest.mark.parametrize("matmul, cudnn", CHOICES)
def test_restored_after_an_exception_in_nested_blocks(matmul, cudnn):
    before = effective()
    with pytest.raises(KeyError), switches.tf32(matmul=matmul, cudnn=cudnn):
        outer = effective()
        with pytest.raises(ZeroDivisionError), switches.tf32(cudnn=not cudnn):
            with switches.matmul_precision("medium"), switches.fast_path(False):
                assert torch.get_float32_matmul_precision() == "medium"
                assert not torch.backends.mha.get_fastpath_enabled()
                raise ZeroDivisionError
        assert effective() == outer
        raise KeyError
    assert effective() == before


@pytest.mark.parametrize("block", ["tf32", "around_call"])
def test_restored_though_the_interrupt_comes_while_they_are_put_back(
    block, monkeypatch
):
    before, rest = switches.state(), [KeyboardInterrupt]
    make = {
        "tf32": lambda: switches.tf32(matmul=True, cudnn=False),
        "around_call": lambda: switches.around_call(matmul="high", cudnn=False),
    }
    write = torch.set_float32_matmul_precision

    def interrupted(precision):
        write(precision)
        if precision == before["float32_matmul_precision"] and rest:
            raise rest.pop()

    quick = dict(switches._QUICK, matmul=(switches._QUICK["matmul"][0], interrupted))
    with pytest.raises(KeyboardInterrupt), make[block]():
        assert switches.state() != before
        monkeypatch.setattr(torch, "set_float32_matmul_precision", interrupted)
        monkeypatch.setattr(switches, "_QUICK", quick)
    assert not rest and switches.state() == before


def test_restored_whatever_the_block_did():
    before = effective()
    with switches.restored():
        torch.set_float32_matmul_precision("medium")
        torch.backends.cudnn.allow_tf32 = not before["cudnn"]
        torch.backends.mha.set_fastpath_enabled(False)
        torch.backends.cudnn.benchmark = not before["benchmark"]
        torch.backends.cudnn.benchmark_limit = 3
    assert effective() == before


def test_cudnn_benchmark_is_as_asked_inside():
    for enabled in (True, False):
        with switches.cudnn_benchmark(enabled):
            assert torch.backends.cudnn.benchmark == enabled
            assert torch.backends.cudnn.benchmark_limit == 10
    with pytest.raises(KeyError), switches.cudnn_benchmark(True, limit=0):
        assert torch.backends.cudnn.benchmark_limit == 0
        raise KeyError


@pytest.mark.parametrize(
    "options, error",
    [((1,), TypeError), ((True, 2.5), TypeError), ((True, -1), ValueError)],
)
def test_cudnn_benchmark_refuses_what_it_cannot_use(options, error):
    with pytest.raises(error, match="give"), switches.cudnn_benchmark(*options):
        raise AssertionError("not reached")


@needs_newer
def test_restored_after_the_newer_family_made_a_mix():
    before = effective()
    with switches.restored():
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        torch.backends.cudnn.conv.fp32_precision = "ieee"
        with pytest.raises(RuntimeError, match="mix"):
            torch.get_float32_matmul_precision()
        assert switches.state()["float32_matmul_precision"] == "mixed"
        assert switches.state()["cudnn.allow_tf32"] == "mixed"
    assert effective() == before


@needs_newer
@pytest.mark.parametrize("place", ["", "cudnn", "mkldnn", "mkldnn.conv"])
def test_general_settings_are_restored_and_do_not_reach_inside(place):
    owner = torch.backends
    for part in filter(None, place.split(".")):
        owner = getattr(owner, part)
    before = effective()
    with switches.restored():
        owner.fp32_precision = "tf32"
        with switches.tf32(matmul=False, cudnn=False):
            assert torch.backends.cuda.matmul.fp32_precision != "tf32"
            assert torch.backends.cudnn.conv.fp32_precision != "tf32"
            assert torch.backends.cudnn.rnn.fp32_precision != "tf32"
    assert effective() == before


def test_a_program_that_uses_the_older_family_alone_can_still_read_it():
    code = """
import torch
from helpers import switches
torch.set_float32_matmul_precision("medium")
torch.backends.cuda.matmul.allow_tf32 = False
for block in (switches.tf32(matmul=True), switches.matmul_precision("high")):
    with block:
        pass
    print(torch.backends.cuda.matmul.allow_tf32)
"""
    assert run(code) == ["False", "False"]


def run(code):
    """Return the words that a fresh Python prints."""
    command = [sys.executable, "-c", code]
    root = Path(__file__).parents[1]
    answer = subprocess.run(command, capture_output=True, text=True, cwd=root)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.split()


@needs_newer
@pytest.mark.parametrize("matmul", ["none", "ieee", "tf32"])
@pytest.mark.parametrize("conv", ["none", "ieee", "tf32"])
@pytest.mark.parametrize("rnn", ["none", "ieee", "tf32"])
def test_a_program_that_uses_the_newer_family_keeps_it(matmul, conv, rnn):
    with switches.restored():
        torch.backends.cuda.matmul.fp32_precision = matmul
        torch.backends.cudnn.conv.fp32_precision = conv
        torch.backends.cudnn.rnn.fp32_precision = rnn
        before = effective()
        for ours in CHOICES:
            with switches.tf32(*ours):
                if ours[0] is not None:
                    assert torch.backends.cuda.matmul.allow_tf32 == ours[0]
                if ours[1] is not None:
                    assert torch.backends.cudnn.allow_tf32 == ours[1]
            after = effective()
            # A contradiction may be gone; what is in effect may not have changed.
            assert {k: after[k] for k in after if before[k] != "refused"} == {
                k: v for k, v in before.items() if v != "refused"
            }


@needs_newer
def test_the_general_setting_still_decides_afterwards():
    """A block that changes nothing must not write, or it would cut this tie."""
    code = """
import torch
from helpers import switches
with switches.tf32(cudnn=True), switches.matmul_precision("highest"):
    with switches.tf32(matmul=False):
        pass
torch.backends.fp32_precision = "tf32"
print(torch.backends.cuda.matmul.fp32_precision)
"""
    assert run(code) == ["tf32"]


@pytest.mark.parametrize("precision", switches.PRECISIONS)
def test_what_is_set_already_is_not_written(precision, monkeypatch):
    written = []
    with switches.matmul_precision(precision):
        monkeypatch.setattr(torch, "set_float32_matmul_precision", written.append)
        with switches.matmul_precision(precision), switches.tf32(cudnn=True):
            pass
        monkeypatch.undo()
    assert written == []


def test_decorators_work_too():
    @switches.tf32(matmul=True)
    def inside():
        return torch.backends.cuda.matmul.allow_tf32

    assert [inside(), inside()] == [True, True]


def test_fast_path_hides_or_shows_the_layers_inside():
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    seen = []
    # Parameters' use inside: linear1 is called as a module on the slow path alone.
    layer.linear1.forward = lambda x: seen.append(x) or torch.zeros(*x.shape[:-1], 16)
    x = torch.randn(1, 4, 8)
    with torch.inference_mode():
        layer(x)
        assert not seen
        with switches.fast_path(False):
            layer(x)
    assert len(seen) == 1


def test_state_names_what_is_set():
    assert set(switches.state()) == {
        "float32_matmul_precision",
        "cudnn.allow_tf32",
        "mha fast path",
        "cudnn.benchmark",
        "cudnn.benchmark_limit",
    }
    with switches.tf32(matmul=True, cudnn=False), switches.fast_path(False):
        assert list(switches.state().values())[:3] == ["high", False, False]


@pytest.mark.parametrize("value", ["tf32", "HIGH", "", None, 1])
def test_an_unknown_precision_is_refused(value):
    with pytest.raises(ValueError, match="highest.*high.*medium") as error:
        with switches.matmul_precision(value):
            raise AssertionError("not reached")
    assert repr(value) in str(error.value)


@pytest.mark.parametrize("options", [{"matmul": "high"}, {"cudnn": 1}])
def test_tf32_takes_truth_values_alone(options):
    with pytest.raises(TypeError, match="True, False or None"):
        with switches.tf32(**options):
            raise AssertionError("not reached")


def test_fast_path_takes_truth_values_alone():
    with pytest.raises(TypeError, match="'off'"), switches.fast_path("off"):
        raise AssertionError("not reached")


def compiled_matmul_agrees(device, **options):
    torch._dynamo.reset()
    a, b = torch.randn(2, 128, 128, device=device)
    compiled = torch.compile(lambda a, b: torch.relu(a @ b), **options)
    exact = torch.relu(a.double() @ b.double())
    for allowed in (False, True):
        with switches.tf32(matmul=allowed, cudnn=allowed):
            assert (compiled(a, b) - exact).norm() < 2e-3 * exact.norm()
    assert (compiled(a, b) - exact).norm() < 1e-5 * exact.norm()


def test_compile_works_in_and_after_a_block():
    from helpers import machine

    if not machine.supports("torch.compile"):
        pytest.skip(machine.supports("torch.compile").why)
    compiled_matmul_agrees("cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["default", "max-autotune-no-cudagraphs"])
def test_compile_with_autotuning_works_in_and_after_a_block(mode):
    compiled_matmul_agrees("cuda", mode=mode)


@pytest.mark.gpu
def test_matmul_convolution_and_rnn_obey():
    """Ask the arithmetic itself: TF32 shows as an error of about 1e-4 or more."""
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("TF32 needs an Ampere GPU or newer")
    a, b = torch.randn(2, 512, 512, device="cuda")
    conv = torch.nn.Conv2d(64, 64, 3, device="cuda")
    rnn = torch.nn.LSTM(128, 128, batch_first=True, device="cuda")
    image = torch.randn(4, 64, 32, 32, device="cuda")
    steps = torch.randn(8, 16, 128, device="cuda")
    calls = {
        "matmul": (lambda: a @ b, lambda: a.double() @ b.double()),
        "conv": (lambda: conv(image), lambda: conv.double()(image.double())),
        "rnn": (lambda: rnn(steps)[0], lambda: rnn.double()(steps.double())[0]),
    }
    with torch.no_grad():
        for name, (call, exact) in calls.items():
            right = exact()
            conv.float(), rnn.float()
            for allowed in (True, False):
                kind = {"matmul" if name == "matmul" else "cudnn": allowed}
                with switches.tf32(**kind):
                    error = (call() - right).norm() / right.norm()
                assert (error > 3e-5) == allowed, (name, allowed, float(error))


# ------------------------------------------------------------------ around single calls

VALUES = {"matmul": "high", "cudnn": False, "fast_path": False, "benchmark": True}
SHOWN = {
    "matmul": "float32_matmul_precision",
    "cudnn": "cudnn.allow_tf32",
    "fast_path": "mha fast path",
    "benchmark": "cudnn.benchmark",
}


@pytest.mark.parametrize("names", [["matmul"], ["cudnn", "benchmark"], list(VALUES)])
def test_around_call_sets_and_puts_back(names):
    before = switches.state()
    wanted = {name: VALUES[name] for name in names}
    with pytest.raises(KeyError), switches.around_call(**wanted):
        inside = switches.state()
        raise KeyError
    assert switches.state() == before
    changed = {SHOWN[name]: VALUES[name] for name in names}
    assert inside == before | changed and inside != before


@needs_newer
@pytest.mark.parametrize("place", ["", ".cudnn", ".cudnn.conv", ".cuda.matmul"])
def test_around_call_beside_the_newer_family(place):
    code = f"""
import torch
from helpers import switches
owner = torch.backends{place}
owner.fp32_precision = "ieee"
with switches.around_call(matmul="highest", cudnn=True):
    print(torch.backends.cudnn.allow_tf32)
with switches.around_call(matmul="high", cudnn=False):
    print(torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision())
print(owner.fp32_precision)
"""
    assert run(code) == ["True", "False", "high", "ieee"]


def test_around_call_refuses_what_it_does_not_know():
    with pytest.raises(KeyError, match="tf32"), switches.around_call(tf32=True):
        pass
