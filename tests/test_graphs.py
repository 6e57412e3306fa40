"""Capturing and replaying CUDA graphs: on a GPU; elsewhere, what is refused."""

import gc

import pytest
import torch
from torch import nn

from helpers import comparing, graphs, machine, models

gpu = pytest.mark.gpu
CAN = machine.supports("CUDA graphs")
needs_graphs = pytest.mark.skipif(not CAN, reason=CAN.why)


def mlp():
    parts = [m for _ in range(5) for m in (nn.Linear(64, 64), nn.ReLU())]
    return nn.Sequential(*parts)


def images(n):
    return torch.randn(n, 1, 8, 8, device="cuda")


CASES = {
    "mlp": (mlp, lambda: torch.randn(3, 64, device="cuda")),
    "cnn": (models.DigitsNet, lambda: images(4)),
    "transformer": (
        lambda: models.OptimizedTransformerLayer(64, 4),
        lambda: torch.randn(2, 10, 64, device="cuda"),
    ),
}


def capture_item():
    """Try to capture a call that asks for a value."""
    x = torch.randn(8, device="cuda")
    with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
        graphs.capture(lambda x: x * x.sum().item(), x)


def test_arguments_are_checked_first():
    x = torch.ones(1)
    with pytest.raises(TypeError, match="cannot capture 3"):
        graphs.capture(3, x)
    with pytest.raises(TypeError, match="cannot vary 3"):
        graphs.capture(torch.add, x, 3)
    for wrong in (-1, 2.5, "3"):
        with pytest.raises(ValueError, match=f"warmup={wrong!r}"):
            graphs.capture(torch.relu, x, warmup=wrong)


def test_a_call_keeps_no_history_of_gradients():
    class Replay:
        def replay(self):
            pass

    buffer = torch.zeros(2)
    captured = graphs.Captured(torch.relu, Replay(), (buffer,), buffer, 0)
    weights = torch.ones(2, requires_grad=True)
    answer = captured(weights * 2)
    assert not buffer.requires_grad and not answer.requires_grad
    assert answer.tolist() == [2, 2]


@pytest.mark.skipif(bool(CAN), reason="this machine has CUDA graphs")
def test_without_cuda_graphs_the_reason_is_raised():
    with pytest.raises(RuntimeError, match="CUDA graphs need"):
        graphs.capture(torch.relu, torch.ones(1))


@gpu
@needs_graphs
@pytest.mark.parametrize("name", CASES)
def test_replays_on_new_inputs_equal_eager(name):
    make, draw = CASES[name]
    model = make().cuda().eval()
    captured = graphs.capture(model, draw())
    for _ in range(3):
        new = draw()
        with torch.no_grad():
            wanted = model(new)
        assert comparing.difference(captured(new), wanted).relative < 1e-5
    assert captured.pool_bytes > 0


@gpu
@needs_graphs
def test_an_answer_survives_the_next_replay_and_replay_overwrites():
    captured = graphs.capture(lambda x: x * 2, torch.ones(4, device="cuda"))
    first = captured(torch.full((4,), 3.0, device="cuda"))
    raw = captured.replay()
    captured(torch.full((4,), 5.0, device="cuda"))
    assert first.tolist() == [6.0] * 4
    assert raw.tolist() == [10.0] * 4


@gpu
@needs_graphs
def test_several_inputs_nested_outputs_and_inference_mode():
    def call(a, b):
        return {"sum": a + b, "pair": (a * b, None)}

    with torch.inference_mode():
        a, b = torch.randn(2, 5, device="cuda").unbind()
        captured = graphs.capture(call, a, b)
        answer = captured(b, b)
    assert torch.equal(answer["sum"], b + b)
    assert torch.equal(answer["pair"][0], b * b)
    assert answer["pair"][1] is None


@gpu
@needs_graphs
@pytest.mark.parametrize("replaced", [False, True])
def test_the_weights_stay_where_the_graph_reads_them(replaced):
    model, x = mlp().cuda(), torch.randn(3, 64, device="cuda")
    captured = graphs.capture(model, x)
    wanted = captured(x)
    if replaced:
        model.half()
    del model
    gc.collect()
    torch.cuda.empty_cache()
    junk = [torch.full((64, 64), 7.0, device="cuda") for _ in range(50)]
    assert torch.equal(captured(x), wanted), len(junk)


@gpu
@needs_graphs
def test_other_shapes_dtypes_devices_and_numbers_of_inputs_are_refused():
    captured = graphs.capture(lambda x: x + 1, torch.ones(4, device="cuda"))
    for wrong in (
        (torch.ones(5, device="cuda"),),
        (torch.ones(4, device="cuda", dtype=torch.float16),),
        (torch.ones(4),),
        (),
        (torch.ones(4, device="cuda"),) * 2,
        (3.0,),
    ):
        with pytest.raises(ValueError, match=r"captured for \(4,\)"):
            captured(*wrong)
    assert captured(torch.ones(4, device="cuda")).tolist() == [2.0] * 4


@gpu
@needs_graphs
def test_what_cannot_be_captured_says_why():
    x = torch.ones(4, device="cuda")
    with pytest.raises(ValueError, match=r"current GPU, got \(\) torch.float32 on cpu"):
        graphs.capture(torch.mul, x, torch.tensor(2.0))
    with pytest.raises(RuntimeError, match="would never change"):
        graphs.capture(lambda x: (x + 1, x.shape[0]), x)
    with pytest.raises(RuntimeError, match="empty"):
        graphs.capture(lambda x: torch.ones(3) + 1, x)
    with torch.autocast("cuda"), pytest.raises(RuntimeError, match="autocast"):
        graphs.capture(lambda x: x + 1, x)


@gpu
@needs_graphs
def test_a_failed_capture_leaves_the_process_usable():
    stream = torch.cuda.current_stream()
    for _ in range(3):
        capture_item()
        assert torch.cuda.current_stream() == stream
        assert not torch.cuda.is_current_stream_capturing()
        torch.rand(3, device="cuda")
        torch.cuda.empty_cache()
        model, x = mlp().cuda(), torch.randn(3, 64, device="cuda")
        with torch.no_grad():
            wanted = model(x)
        assert torch.allclose(graphs.capture(model, x)(x), wanted)


@gpu
@needs_graphs
def test_a_failed_capture_leaves_no_memory_behind():
    def greedy(x):
        big = torch.ones(64 << 20, device="cuda")  # 256 MiB
        return x * big.sum().item()

    def growth():
        """Allocate and free what another stream has used; return what stays."""
        other, before = torch.cuda.Stream(), torch.cuda.memory_reserved()
        for _ in range(5):
            used = torch.empty(64 << 20, device="cuda", dtype=torch.uint8)
            used.record_stream(other)
            del used
            torch.cuda.synchronize()
        return torch.cuda.memory_reserved() - before

    growth()
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="cannot be captured"):
            graphs.capture(greedy, torch.ones(1, device="cuda"))
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() - before < 64 << 20
    growth()
    assert growth() == 0


@gpu
@needs_graphs
def test_the_output_holds_the_answer_for_the_first_inputs():
    x = torch.ones(4, device="cuda")
    captured = graphs.capture(lambda x: x.add_(1) * 2, x)  # the warm-up adds, too
    assert captured.output.tolist() == [4.0] * 4
    assert x.tolist() == [1.0] * 4


@gpu
@needs_graphs
def test_a_cache_made_in_inference_mode_can_be_written():
    with torch.inference_mode():
        cache = torch.zeros(4, device="cuda")
        captured = graphs.capture(lambda x: cache.copy_(x) + 1, cache + 1)
        captured(cache + 5)
    assert cache.tolist() == [6.0] * 4


@gpu
@needs_graphs
def test_each_graph_has_its_own_workspace_and_returns_it():
    linear, x = nn.Linear(64, 64).cuda(), torch.randn(3, 64, device="cuda")
    linear(x)
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    pools = [graphs.capture(linear, x).pool_bytes for _ in range(3)]
    assert len(set(pools)) == 1
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() - before < 4 << 20


@gpu
@needs_graphs
def test_a_graph_within_a_capture_is_refused():
    def nested(x):
        return graphs.capture(torch.relu, x).output

    with pytest.raises(RuntimeError, match="a capture is under way"):
        graphs.capture(nested, torch.ones(3, device="cuda"), warmup=0)
    torch.rand(3, device="cuda")


@gpu
@needs_graphs
def test_the_reason_is_that_of_the_call_not_an_older_one():
    def call(x):
        try:
            raise KeyError("older")
        except KeyError:
            raise ValueError("the real reason") from None

    for outer in (KeyboardInterrupt, OSError):
        try:
            raise outer
        except outer:
            with pytest.raises(RuntimeError, match="the real reason"):
                graphs.capture(call, torch.ones(3, device="cuda"), warmup=0)


@gpu
@needs_graphs
def test_an_error_of_the_call_itself_is_told_and_the_gpu_usable():
    def call(x):
        if torch.cuda.is_current_stream_capturing():
            raise KeyError("mine")
        return x

    with pytest.raises(RuntimeError, match="mine"):
        graphs.capture(call, torch.ones(1, device="cuda"))
    torch.rand(3, device="cuda")


@gpu
@needs_graphs
def test_an_interrupt_goes_through_and_the_gpu_is_usable():
    def call(x):
        if torch.cuda.is_current_stream_capturing():
            raise KeyboardInterrupt
        return x

    stream = torch.cuda.current_stream()
    with pytest.raises(KeyboardInterrupt):
        graphs.capture(call, torch.ones(1, device="cuda"))
    assert torch.cuda.current_stream() == stream
    torch.rand(3, device="cuda")


@gpu
@needs_graphs
def test_deleting_a_graph_gives_its_pool_back():
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    captured = graphs.capture(
        lambda x: (x + 1) * 2, torch.ones(64 << 20, device="cuda")
    )
    assert captured.pool_bytes >= 256 << 20
    del captured
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() - before < 64 << 20


@gpu
@needs_graphs
def test_random_numbers_are_fresh_and_follow_the_seed():
    x = torch.ones(1000, device="cuda")
    captured = graphs.capture(lambda x: torch.dropout(x, 0.5, True), x)
    assert not torch.equal(captured(x), captured(x))
    torch.manual_seed(3)
    wanted = torch.dropout(x, 0.5, True)
    torch.manual_seed(3)
    assert torch.equal(captured(x), wanted)
