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
import warnings
from collections.abc import Callable

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from helpers import machine


@dataclasses.dataclass(frozen=True)
class Captured:
    """Hold a captured call; call it as the original, with inputs of the same shapes.

    Attributes:
        call: what was captured. It is kept because the graph reads its weights.
        graph: PyTorch's ``CUDAGraph``.
        inputs: the graph's own input buffers.
        output: what the capture returned; each replay overwrites its tensors.
        pool_bytes: GPU memory that is reserved for the output and all between.
    """

    call: Callable
    graph: "torch.cuda.CUDAGraph"
    inputs: tuple[torch.Tensor, ...]
    output: object
    pool_bytes: int

    def __call__(self, *inputs: torch.Tensor):
        """Copy the inputs in, replay, and return a copy of the output.

        Raises:
            ValueError: there are more or fewer inputs than captured, or one differs in
                shape, dtype or device; nothing was replayed.
        """
        asked, captured = _words(inputs), _words(self.inputs)
        if asked != captured:
            raise ValueError(f"captured for {captured}, called with {asked}")
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
    any other tensor lies.

    Args:
        warmup: calls before the capture, in a stream of their own. Libraries set
            themselves up and choose algorithms there; a capture allows neither.

    Raises:
        TypeError: an input is not a tensor.
        RuntimeError: there is no GPU with CUDA graphs; the call launches nothing on it,
            or part of its output is no tensor there, and would stay as it is; or it
            does what a capture does not allow, such as waiting for the GPU. The GPU
            can then be used as before.
    """
    can = machine.supports("CUDA graphs")
    if not can:
        raise RuntimeError(can.why)
    for x in inputs:
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"cannot vary {x!r}: give tensors, put the rest in `call`")
    if torch.is_autocast_enabled() and torch.is_autocast_cache_enabled():
        raise RuntimeError(
            "autocast around a capture casts the weights outside of it: put autocast "
            "inside the call, or give it cache_enabled=False"
        )
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    # The stream block: a capture that fails would leave its own stream current.
    with torch.inference_mode(False), torch.no_grad(), torch.cuda.stream(main):
        own = tuple(x.detach().clone() for x in inputs)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            for _ in range(warmup):
                call(*own)
        main.wait_stream(side)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before, graph = torch.cuda.memory_reserved(), torch.cuda.CUDAGraph()
        pool = torch.cuda.graph_pool_handle()
        try:
            with warnings.catch_warnings(), torch.cuda.graph(graph, pool=pool):
                warnings.filterwarnings("error", message="The CUDA Graph is empty")
                output = call(*own)
        except BaseException as error:
            _clean_up(pool)
            cause = _first(error)
            if not isinstance(cause, Exception):
                raise cause from None  # an interrupt
            words = str(cause).splitlines() or [type(cause).__name__]
            raise RuntimeError(f"cannot be captured: {words[0]}") from error
        pool_bytes = torch.cuda.memory_reserved() - before
    for x in tree_leaves(output):
        if x is not None and not (isinstance(x, torch.Tensor) and x.is_cuda):
            raise RuntimeError(f"cannot be captured: {_words([x])} would never change")
    return Captured(call, graph, own, output, pool_bytes)


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


def _words(tensors) -> str:
    parts = (
        f"{tuple(x.shape)} {x.dtype} on {x.device}"
        if isinstance(x, torch.Tensor)
        else repr(x)
        for x in tensors
    )
    return ", ".join(parts) or "no inputs"


def _first(error: BaseException) -> BaseException:
    """Return what was raised first; ending the capture then raises another."""
    while error.__context__ is not None:
        error = error.__context__
    return error
