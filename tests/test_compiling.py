"""What the helper says of torch.compile, against what PyTorch was told to do."""

import importlib.util
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from helpers import compiling, machine, models, roofline

REPOSITORY = Path(__file__).resolve().parents[1]
works = pytest.mark.skipif(
    not machine.supports("torch.compile"), reason="torch.compile does not work here"
)
captures = pytest.mark.skipif(
    not compiling.captures(), reason="Dynamo does not work here"
)
SIZES = (8, 16, 32, 64, 8, 1, 0, 2, 128)


@pytest.fixture(autouse=True)
def forget():
    yield
    torch._dynamo.reset()


def chain(x):
    return torch.tanh(x * 2 + 1) * x


def ask(expression, **environment):
    """Evaluate an expression of `compiling` in a new process."""
    code = f"from helpers import compiling; print({expression})"
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=REPOSITORY,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


@works
def test_it_works_where_a_static_check_finds_nothing_missing():
    assert compiling.works().ok, compiling.works().why
    assert compiling.captures().ok


@works
@pytest.mark.skipif(sys.platform == "win32", reason="the compiler has another name")
def test_a_compiler_that_is_missing_or_broken_is_named():
    missing = ask("compiling.works()", CXX="no-such-compiler")
    assert "ok=False" in missing and "C++ compiler" in missing
    # `false` is found, so the static check passes; compiling C++ with it fails.
    hidden = {"CXX": "false", "CUDA_VISIBLE_DEVICES": ""}
    broken = ask("(compiling.works(), compiling.captures())", **hidden)
    assert "ok=False" in broken.split("Support")[1] and "false" in broken
    assert "ok=True" in broken.split("Support")[2]


def test_compiling_that_is_switched_off_does_not_count_as_working():
    off = ask("(compiling.works(), compiling.captures())", TORCHDYNAMO_DISABLE="1")
    assert off.count("ok=False") == 2


def test_the_stand_in_takes_what_torch_compile_takes_and_raises_why(monkeypatch):
    no = machine.Support(False, "no compiler in this test")
    monkeypatch.setattr(compiling, "works", lambda: no)
    stand_in = compiling.refused(chain, mode="default", dynamic=True)
    with pytest.raises(RuntimeError, match="no compiler in this test"):
        stand_in(torch.ones(2))


def test_fresh_raises_the_limit_and_puts_everything_back():
    name, config = compiling.limit_name(), torch._dynamo.config
    before = getattr(config, name), os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    with compiling.fresh(limit=30):
        assert getattr(config, name) == 30
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] != before[1]
        with compiling.fresh():
            assert getattr(config, name) == 64
        assert getattr(config, name) == 30
    with pytest.raises(KeyError), compiling.fresh():
        raise KeyError
    assert (getattr(config, name), os.environ.get("TORCHINDUCTOR_CACHE_DIR")) == before
    with pytest.raises(ValueError, match="limit=0"), compiling.fresh(limit=0):
        pass


@captures
def test_operations_are_captured_and_unused_ones_dropped():
    def unused(x):
        torch.sin(x)
        return torch.relu(x)

    captured, kept = compiling.operations(unused, torch.ones(3))
    assert captured == ["sin", "relu"]
    assert kept == ["relu.default"]


@captures
@pytest.mark.parametrize(
    ("dynamic", "graphs"),
    [
        (None, [1, 2, 2, 2, 2, 3, 4, 4, 4]),
        (True, [1, 1, 1, 1, 1, 2, 3, 3, 3]),
        (False, [1, 2, 3, 4, 4, 5, 6, 7, 8]),
    ],
)
def test_graphs_are_counted(dynamic, graphs):
    counter = compiling.Counter()
    call = counter.compile(chain, dynamic=dynamic)
    counts = []
    for i, size in enumerate(SIZES, 1):
        x = torch.randn(size, 4)
        assert torch.equal(call(x), chain(x))
        counts.append(counter.graphs)
        assert counter.runs == i
    assert counts == graphs


@captures
def test_behind_the_limit_no_graph_runs_and_the_warning_is_collected(capfd):
    counter = compiling.Counter()
    call = counter.compile(chain, dynamic=False)
    limit = getattr(torch._dynamo.config, compiling.limit_name())
    with compiling.logged() as lines:
        for size in range(2, 2 + limit + 3):
            call(torch.ones(size))
    assert counter.graphs == counter.runs == limit
    assert len(lines) == 1 and "limit" in lines[0]
    assert capfd.readouterr().err == ""
    call(torch.ones(2))
    assert counter.runs == limit + 1  # what has a graph keeps it
    again = compiling.Counter()
    again.compile(chain, dynamic=False)(torch.ones(2))
    assert again.graphs == 1


def test_without_dynamo_the_counter_counts_nothing(monkeypatch):
    no = machine.Support(False, "for this test")
    monkeypatch.setattr(compiling, "captures", lambda: no)
    counter = compiling.Counter()
    assert counter.compile(chain) is chain
    assert counter.graphs == counter.runs == 0


@works
def test_a_chain_becomes_one_kernel_that_moves_the_least_bytes():
    x = torch.randn(1000, 100)
    code = compiling.generate(chain, x)
    assert len(code.kernels) == 1 and "fused" in code.kernels[0]
    assert code.bytes_moved == roofline.count(chain, x).bytes_least
    assert code.text not in repr(code)


@works
def test_library_calls_are_kernels_too():
    a, b = torch.randn(64, 64), torch.randn(64, 64)
    code = compiling.generate(torch.matmul, a, b)
    assert code.kernels == ("extern_kernels.mm",)
    assert code.bytes_moved == 3 * a.nbytes
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.LayerNorm(64)).eval()
    first, second = compiling.generate(net, a).kernels
    assert first == "extern_kernels.addmm"
    assert "relu" in second and "layer_norm" in second


@works
def test_what_runs_eager_is_no_code_and_everything_is_put_back():
    from torch._inductor.graph import GraphLowering

    before = GraphLowering.codegen, GraphLowering.save_output_code, sys.stderr
    lstm = nn.LSTM(4, 4)
    with pytest.raises(RuntimeError, match="LSTM.* ran eager"):
        compiling.generate(lstm, torch.ones(1, 1, 4))
    with compiling.fresh(), pytest.raises(ZeroDivisionError):
        compiling.cold_start(lambda: 1 / 0)
    after = GraphLowering.codegen, GraphLowering.save_output_code, sys.stderr
    assert after == before


@works
def test_a_cold_start_is_timed_and_autotuning_is_quiet(capfd):
    model, x = models.SimpleModel().eval(), torch.randn(4, 1024)
    with compiling.fresh(), torch.no_grad():
        call = torch.compile(model, mode="max-autotune")
        start = compiling.cold_start(lambda: call(x), isolated=False)
        again = compiling.cold_start(lambda: call(x))
    assert start.seconds > again.seconds > 0
    assert start.code.kernels and not again.code.kernels
    if machine.detect().device != "cuda":
        assert start.kept_bytes is None
        assert compiling.graph_launches(lambda: call(x)) == 0
    assert capfd.readouterr().err == ""


@pytest.mark.gpu
def test_cuda_graphs_are_seen_where_they_are_used():
    model = models.SimpleModel().cuda().eval()
    x, launches = torch.randn(4, 1024, device="cuda"), {}
    with compiling.fresh(), torch.no_grad():
        for mode in ("default", "reduce-overhead"):
            call = torch.compile(model, mode=mode)
            start = compiling.cold_start(lambda call=call: call(x))
            launches[mode] = compiling.graph_launches(lambda call=call: call(x))
            assert start.kept_bytes >= 0
    assert launches == {"default": 0, "reduce-overhead": 1}


@pytest.mark.gpu
def test_launches_are_counted_one_by_one_and_as_graphs():
    x = torch.randn(4, 8, device="cuda")
    x.add_(0)  # loads the kernel
    assert compiling.count_launches(lambda: x.add_(1).mul_(2)) == (2, 0)


@pytest.mark.gpu
def test_the_reason_is_told_where_a_graph_is_skipped():
    x = torch.randn(4, 8, device="cuda")
    for call, wanted in ((lambda x: x * 2, 0), (lambda x: x.add_(1) * 2, 1)):
        with compiling.fresh(), torch.no_grad(), compiling.graph_skips() as reasons:
            compiled = torch.compile(call, mode="reduce-overhead")
            compiling.cold_start(lambda compiled=compiled: compiled(x))
        assert len(reasons) == wanted
        assert all("mutated inputs" in reason for reason in reasons)


@pytest.mark.parametrize("module", ["output_code", "cudagraph_trees"])
def test_reasons_for_skipping_are_collected_once_each_and_the_log_put_back(module):
    place = importlib.import_module(f"torch._inductor.{module}")
    name = "log_cudagraph_skip_and_bump_counter"
    before, counters = getattr(place, name), torch._dynamo.utils.counters["inductor"]
    skips = counters["cudagraph_skips"]
    due = "skipping cudagraphs due to "
    said = f"{due}{due}mutated inputs (1 instances). Found from :\n f"
    with pytest.raises(ZeroDivisionError), compiling.graph_skips() as reasons:
        getattr(place, name)(said)
        getattr(place, name)(said)
        getattr(place, name)("disabling cudagraph due to ['x']\nmore")
        raise ZeroDivisionError
    assert reasons == ["mutated inputs (1 instances)", "x"]
    assert counters["cudagraph_skips"] == skips + 3
    assert getattr(place, name) is before


@pytest.mark.skipif(machine.detect().device == "cuda", reason="this machine has a GPU")
def test_without_a_gpu_the_call_runs_and_nothing_is_launched():
    ran = []
    assert compiling.count_launches(lambda: ran.append(1)) == (0, 0)
    assert ran == [1]


@captures
@pytest.mark.skipif(sys.platform == "win32", reason="the compiler has another name")
def test_the_notebook_reaches_its_end_without_a_compiler():
    nbformat = pytest.importorskip("nbformat")
    path = REPOSITORY / "notebooks" / "record.py"
    spec = importlib.util.spec_from_file_location("record", path)
    record = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(record)
    notebook = nbformat.read(path.with_name("04_torch_compile.ipynb"), as_version=4)
    environment = record.kernel_environment(False) | {"CXX": "no-such-compiler"}
    record.execute(notebook, path.parent, environment)
    shown = "".join(
        output.get("text", "")
        for cell in notebook.cells
        for output in cell.get("outputs", ())
    )
    assert "torch.compile: there is no C++ compiler" in shown
    assert "G1-39 cannot be tested here: there is no C++ compiler" in shown
    assert "G1-37 does not hold here" in shown  # Dynamo captures without one


def test_an_error_leaves_a_fresh_block_without_a_line_in_the_log(caplog, capfd):
    logging.getLogger("torch._inductor").addHandler(caplog.handler)
    try:
        with pytest.raises(RuntimeError), compiling.fresh():
            raise RuntimeError
    finally:
        logging.getLogger("torch._inductor").removeHandler(caplog.handler)
    assert not caplog.text and not capfd.readouterr().err


# ------------------------------------------------------------------ in a new process


def test_a_new_process_gets_arguments_and_variables_and_empty_caches():
    code = "import os, sys; print(sys.argv[1:]); print(os.environ['COLOR'])\n"
    code += "print(os.listdir(os.environ['TORCHINDUCTOR_CACHE_DIR']))"
    lines = compiling.new_process(code, "a", "b c", COLOR="red")
    assert lines == ["['a', 'b c']", "red", "[]"]


def test_a_new_process_that_fails_says_how_and_keeps_what_it_printed():
    lines = compiling.new_process("print(1, flush=True); raise ValueError('too wide')")
    assert lines == ["1", "exit status 1: ValueError: too wide"]
    killed = compiling.new_process("import os; os._exit(3)")
    assert killed == ["exit status 3"]


def test_a_new_process_that_hangs_is_ended():
    code = "import time; print('here', flush=True); time.sleep(60)"
    assert compiling.new_process(code, at_most=3) == ["here", "no end in 3 s"]
