"""Capture a callable as a CUDA graph, and replay it on new inputs.

A CUDA graph is a recording of kernel launches with fixed addresses. Replaying it costs
one launch, however many kernels it holds. But a replay runs no Python, reads its inputs
where they lay at the capture, and writes its output where that one was. So the graph
gets input buffers of its own, new inputs are checked and copied into them, and the
caller gets a copy of the output.

Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
"""

import contextlib
import dataclasses
import gc
import warnings
from collections.abc import Callable

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from helpers import machine
from helpers._arguments import quoted
from helpers.comparing import weights


@dataclasses.dataclass(frozen=True)
class Captured:
    """Hold a captured call; call it as the original, with inputs of the same shapes.

    It reads the weights where they lay at the capture: a change in place is seen, new
    tensors in their stead (``model.half()``) are not. Where the original changes an
    input, the graph's own buffer is changed.

    Attributes:
        call: what was captured.
        graph: PyTorch's ``CUDAGraph``.
        inputs: the graph's own input buffers, to be filled before ``replay``; as
            arguments of a call they would overwrite one another.
        output: what the capture returned; each replay overwrites its tensors.
        pool_bytes: GPU memory that stays reserved for it: the output, all between, and
            the workspace of the matrix library.
        weights: those of the modules that ``call`` refers to, kept alive. Other tensors
            that it reads must be kept by whoever made them.
    """

    call: Callable
    graph: "torch.cuda.CUDAGraph"
    inputs: tuple[torch.Tensor, ...]
    output: object
    pool_bytes: int
    weights: tuple[torch.Tensor, ...] = ()

    def __call__(self, *inputs: torch.Tensor):
        """Copy the inputs in, replay, and return a copy of the output, no gradients.

        Raises:
            ValueError: there are more or fewer inputs than captured, or one differs in
                shape, dtype or device; nothing was replayed.
        """
        if [_kind(x) for x in inputs] != [_kind(x) for x in self.inputs]:
            words = f"captured for {_words(self.inputs)}, called with {_words(inputs)}"
            raise ValueError(words)
        with torch.no_grad():
            for mine, new in zip(self.inputs, inputs, strict=True):
                mine.copy_(new)
            return tree_map_only(torch.Tensor, torch.clone, self.replay())

    def replay(self):
        """Replay on what is in ``inputs``; the next one overwrites what this gives."""
        self.graph.replay()
        return self.output


def capture(call: Callable, *inputs: torch.Tensor, warmup: int = 3) -> Captured:
    """Record the kernels that ``call(*inputs)`` launches, without gradients.

    What is not among ``inputs`` is frozen: numbers, the way an ``if`` went, and where
    any other tensor lies. The workspaces of the matrix library are cleared: a graph
    captured otherwise, on a stream that was used before, must not be replayed any more.

    Args:
        call: returns tensors on the GPU, or tuples, lists and dicts of them. What it
            changes elsewhere, it changes ``warmup`` times, and once more at the end.
        inputs: on the current GPU.
        warmup: 0 or more. Libraries set themselves up and choose algorithms in a first
            call; a capture allows neither.

    Raises:
        TypeError, ValueError: an argument cannot be used; the message quotes it.
        RuntimeError: there is no GPU with CUDA graphs; the call launches nothing on it,
            or part of its output is not there, and would stay as it is; or it does what
            a capture does not allow, such as waiting for the GPU. What the failed
            capture leaves behind in PyTorch is put right.
    """
    _check(call, inputs, warmup)
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    with torch.inference_mode(False), torch.no_grad():
        own = tuple(x.detach().clone() for x in inputs)
    with torch.no_grad():
        side.wait_stream(main)
        try:
            with torch.cuda.stream(side):
                for _ in range(warmup):
                    call(*own)
        finally:
            main.wait_stream(side)
        gc.collect()  # the capture would, and spoil the count of bytes
        graph, output, pool_bytes = _recorded(call, own)
        for mine, x in zip(own, inputs, strict=True):
            mine.copy_(x)  # the warm-up may have changed it
        graph.replay()  # a capture computes nothing: now the output holds an answer
    kept = tuple(tensor.detach() for tensor in weights(call))
    return Captured(call, graph, own, output, pool_bytes, kept)


def _recorded(call: Callable, own: tuple[torch.Tensor, ...]):
    """Return the graph of a call, its output, and the bytes reserved for it."""
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()  # so that the graph gets one of its own
    torch.cuda.empty_cache()
    before, first = torch.cuda.memory_reserved(), None
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    try:
        # The stream block: a capture that fails would leave its own stream current.
        with (
            warnings.catch_warnings(),
            torch.cuda.stream(torch.cuda.current_stream()),
            torch.cuda.graph(graph, pool=pool),
        ):
            warnings.filterwarnings("error", message="The CUDA Graph is empty")
            try:
                output = call(*own)
            except BaseException as error:
                first = error  # ending the capture then raises another one
                raise
    except BaseException as error:
        cause = first or error
        _clean_up(pool)
        if not isinstance(cause, Exception):
            raise cause from None  # an interrupt
        words = str(cause).splitlines() or [type(cause).__name__]
        raise RuntimeError(f"cannot be captured: {words[0]}") from error
    finally:
        torch._C._cuda_clearCublasWorkspaces()  # and nobody else uses that one
    pool_bytes = torch.cuda.memory_reserved() - before
    for x in tree_leaves(output):
        if x is not None and not _is_here(x):
            raise RuntimeError(f"cannot be captured: {_words([x])} would never change")
    return graph, output, pool_bytes


def _clean_up(pool) -> None:
    """Undo what a capture that failed leaves behind, as seen in torch 2.11.

    The allocator goes on waiting for its end, and keeps what other streams have used
    (``record_stream``) forever. And the generator of random numbers raises "Offset
    increment outside graph capture" until a capture succeeds.
    """
    torch.cuda.synchronize()
    device = torch.cuda.current_device()
    older = "_cuda_endAllocateCurrentStreamToPool"  # torch 2.6
    end = getattr(torch._C, "_cuda_endAllocateToPool", None) or getattr(torch._C, older)
    with contextlib.suppress(RuntimeError):  # where the capture did come to its end
        end(device, pool)
        torch._C._cuda_releasePool(device, pool)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.zeros(1, device="cuda")


def _check(call, inputs, warmup) -> None:
    if not callable(call):
        raise TypeError(f"cannot capture {quoted(call)}: give a callable")
    if not isinstance(warmup, int) or isinstance(warmup, bool) or warmup < 0:
        raise ValueError(f"warmup={quoted(warmup)}: give a number of calls, 0 or more")
    for x in inputs:
        if not isinstance(x, torch.Tensor):
            raise TypeError(
                f"cannot vary {quoted(x)}: give tensors, put the rest in `call`"
            )
    can = machine.supports("CUDA graphs")
    if not can:
        raise RuntimeError(can.why)
    for x in inputs:
        if not _is_here(x):
            raise ValueError(f"inputs must be on the current GPU, got {_words([x])}")
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("a capture is under way: a graph cannot hold another one")
    if torch.is_autocast_enabled() and torch.is_autocast_cache_enabled():
        raise RuntimeError(
            "autocast around a capture casts the weights outside of it: put autocast "
            "inside the call, or give it cache_enabled=False"
        )


def _is_here(x) -> bool:
    here = torch.device("cuda", torch.cuda.current_device())
    return isinstance(x, torch.Tensor) and x.device == here


def _kind(x):
    return (x.shape, x.dtype, x.device) if isinstance(x, torch.Tensor) else x


def _words(tensors) -> str:
    parts = (
        f"{tuple(x.shape)} {x.dtype} on {x.device}"
        if isinstance(x, torch.Tensor)
        else repr(x)
        for x in tensors
    )
    return ", ".join(parts) or "no inputs"
