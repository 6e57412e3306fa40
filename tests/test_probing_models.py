"""helpers.probing and helpers.models: what layers give out, and what digits teach."""

import copy
import math

import pytest
import torch
from torch import nn

from helpers import models, probing, switches


class Scale(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor


def chain():
    layers = {"one": Scale(10.0), "two": Scale(-100.0), "three": Scale(1e-3)}
    model = nn.Sequential()
    for name, layer in layers.items():
        model.add_module(name, layer)
    return model


def test_layers_in_order_with_their_largest_magnitudes():
    probe = probing.probe(chain(), torch.tensor([1.0, -80.0, 70.0]))
    found = {layer.name: layer.largest for layer in probe.layers}
    assert list(found) == ["(input 0)", "one", "two", "three"]
    assert found == pytest.approx(
        {"(input 0)": 80, "one": 800, "two": 80_000, "three": 80}
    )
    assert probe.first_bad is None
    assert [layer.name for layer in probe.beyond("FP16")] == ["two"]
    assert probe.beyond("BF16") == []


def test_the_first_layer_with_inf_is_named():
    probe = probing.probe(chain(), torch.tensor([1.0, -80.0, 70.0]).half())
    assert (probe.first_bad.name, probe.first_bad.infs) == ("two", 2)
    assert probe.first_bad.largest == 1000
    assert [layer.infs for layer in probe.layers] == [0, 0, 2, 2]
    assert {layer.output for layer in probe.layers} == {"FP16"}


def test_nan_counts_and_nothing_finite():
    probe = probing.probe(chain(), torch.tensor([math.nan, math.inf]))
    assert (probe.first_bad.name, probe.first_bad.nans) == ("(input 0)", 1)
    assert math.isnan(probe.first_bad.largest)
    assert "nan" not in repr(probe).split("\n")[2]


def test_formats_of_weights_and_outputs():
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 4), nn.LayerNorm(4))
    ids = torch.tensor([[1, 2]])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = probing.probe(model, ids).layers
    assert [layer.output for layer in mixed][:3] == ["int64", "FP32", "BF16"]
    assert [layer.weights for layer in mixed] == ["", "FP32", "FP32", "FP32"]
    whole = probing.probe(copy.deepcopy(model).double(), ids).layers
    assert [layer.output for layer in whole] == ["int64", "FP64", "FP64", "FP64"]


def test_dict_outputs_and_things_that_are_no_tensors():
    class Odd(nn.Module):
        def forward(self, x, words):
            return {"scores": x, "words": words, "more": (x * 2, None)}

    (first, second, out) = probing.probe(Odd(), torch.ones(2), words="a").layers
    assert (second.output, out.output) == ("", "FP32")
    assert math.isnan(second.largest) and out.largest == 2

    class Even(nn.Module):
        def forward(self, x):
            return {"scores": x, "more": (x * 2, None)}

    assert probing.probe(Even(), torch.ones(2)).layers[-1].largest == 2


def test_a_probe_leaves_the_model_as_it_was_also_after_an_exception():
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    before = switches.state()
    x = torch.randn(1, 4, 8)
    names = {layer.name for layer in probing.probe(model, x).layers}
    assert {"linear1", "self_attn", "norm2", "(output)"} <= names
    with pytest.raises(AssertionError, match="dimension"):
        probing.probe(model, torch.randn(1, 4, 9))
    assert not any(module._forward_hooks for module in model.modules())
    assert switches.state() == before


def test_stored_numbers_are_looked_at_too():
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2)).eval()
    model[1].running_var.fill_(1e6)
    images = torch.ones(1, 1, 2, 2)
    (_, conv, norm) = probing.probe(model, images).layers
    assert norm.stored == 1e6 and conv.stored < 2
    assert (norm.stored_bad, conv.stored_bad) == (0, 0)
    assert [x.name for x in probing.probe(model, images).beyond("FP16")] == ["1"]
    half = probing.probe(model.half(), images.half()).layers
    assert [layer.stored_bad for layer in half] == [0, 0, 2]
    assert math.isnan(half[0].stored)


def test_masks_ids_and_fp8_do_not_stop_a_probe():
    class Odd(nn.Module):
        def forward(self, x, mask):
            return x > 0, x.to(torch.float8_e5m2), mask

    x = torch.tensor([1.0, -3.0])
    layers = probing.probe(Odd(), x, mask=x > 5).layers
    assert [layer.output for layer in layers] == ["FP32", "bool", "bool, FP8 E5M2"]
    assert layers[-1].largest == 3 and math.isnan(layers[1].largest)


def test_an_inf_beside_something_else_is_seen():
    class Talkative(nn.Module):
        def forward(self, x):
            return {"words": "a", "scores": x * math.inf}

    assert probing.probe(Talkative(), torch.ones(2)).first_bad.infs == 2


def test_dropout_is_looked_at_where_it_acts():
    model = nn.Sequential(nn.Identity(), nn.Dropout(0.5))
    x = torch.full((64,), 60_000.0).half()
    assert probing.probe(model.train(), x).first_bad.kind == "Dropout"
    assert [x.name for x in probing.probe(model.eval(), x).layers] == ["(input 0)"]


def test_the_limit_itself_is_not_beyond_it():
    probe = probing.probe(Scale(1.0), torch.tensor([65504.0]))
    assert probe.beyond("FP16") == []
    assert probing.probe(Scale(1.0), torch.tensor([65505.0])).beyond("FP16")


def test_no_gradients_inside():
    class Watcher(nn.Module):
        def forward(self, x):
            assert not torch.is_grad_enabled()
            return x

    probing.probe(Watcher(), torch.ones(1))


def test_kernels_of_a_cpu_are_none():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert probing.kernels(lambda: torch.ones(2) + 1) == ()


@pytest.mark.gpu
def test_kernels_of_a_gpu_in_order():
    x = torch.ones(1000, device="cuda")
    first, second = probing.kernels(lambda: (x + 1).exp())
    assert "add" in first.lower() and "exp" in second.lower()


def test_a_function_is_refused():
    with pytest.raises(TypeError, match="nn.Module"):
        probing.probe(torch.relu, torch.ones(1))


def test_tables():
    probe = probing.probe(chain(), torch.ones(2))
    assert list(probe.table().index) == ["(input 0)", "one", "two", "three"]
    assert "<table" in probe._repr_html_()


# ------------------------------------------------------------------------------- models


def test_digits_are_real_and_told_apart():
    images, labels, test_images, test_labels = models.digits()
    assert images.shape == (1000, 1, 8, 8) and test_images.shape == (797, 1, 8, 8)
    assert images.dtype == torch.float32 and (images.min(), images.max()) == (0, 1)
    assert set(labels.tolist()) == set(test_labels.tolist()) == set(range(10))
    everything = torch.cat([images, test_images]).flatten(1)
    from sklearn.datasets import load_digits

    known = torch.tensor(load_digits().data, dtype=torch.float32) / 16
    order = everything.sum(1).sort().values
    assert torch.equal(order, known.sum(1).sort().values)


def test_training_learns_and_repeats():
    images, labels, test_images, test_labels = models.digits()
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        model = models.train(models.DigitsNet(), images, labels)
        assert not model.training
        with torch.inference_mode():
            found.append(model(test_images))
    torch.testing.assert_close(*found)
    right = (found[0].argmax(1) == test_labels).float().mean()
    assert right > 0.95
    # Labels that mean nothing teach nothing: the test can fail.
    torch.manual_seed(0)
    nonsense = labels[torch.randperm(len(labels))]
    model = models.train(models.DigitsNet(), images, nonsense)
    with torch.inference_mode():
        right = (model(test_images).argmax(1) == test_labels).float().mean()
    assert right < 0.3


def test_operators_are_named_in_order_and_the_call_runs_once():
    x, ran = torch.randn(4, 4), []

    def call():
        ran.append(1)
        with torch.profiler.record_function("not one: this"):
            return torch.relu(nn.functional.linear(x, x))

    names = probing.operators(call)
    wanted = ["aten::linear", "aten::mm", "aten::relu"]  # linear is made of mm
    assert ran == [1]
    assert [name for name in names if name in wanted] == wanted
    assert not any("this" in name for name in names)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_there_is_no_timeline():
    assert probing.timeline(lambda: torch.ones(3) + 1) == ()


@pytest.mark.gpu
def test_a_timeline_has_each_kernel_once_in_order():
    x = torch.randn(64, 64, device="cuda")
    found = probing.timeline(lambda: (x + 1).mul_(2).sub_(3))
    assert len(found) == 3
    assert found[0].start_s == 0
    ends = [kernel.start_s + kernel.seconds for kernel in found]
    assert all(kernel.seconds > 0 for kernel in found)
    assert all(b.start_s > a - 1e-7 for a, b in zip(ends, found[1:], strict=False))


@pytest.mark.gpu
def test_a_timeline_of_calls_that_are_not_alike_is_refused():
    x, calls = torch.randn(8, device="cuda"), iter(range(100))

    def call():
        return x + 1 if next(calls) == 5 else (x + 1) * 2

    with pytest.raises(ValueError, match="not alike"):
        probing.timeline(call)


def test_the_guides_layer_drops_out_until_it_is_told_not_to():
    torch.manual_seed(0)
    layer, x = models.OptimizedTransformerLayer(32, 4), torch.randn(2, 5, 32)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert layer(x).shape == x.shape
    assert torch.equal(layer(x), layer(x))


def test_vision_models_have_a_head_that_answers():
    from helpers import models

    model = models.vision("vit_b_16").eval()
    assert model.heads.head.weight.abs().max() > 0, "torchvision leaves it all zero"
    assert isinstance(models.vision("resnet18"), torch.nn.Module)


def test_a_stack_of_the_guides_layer_keeps_the_shape():
    from helpers import models

    stack = models.transformer(3, 32, 4).eval()
    x = torch.randn(2, 5, 32)
    assert len(stack) == 3 and stack(x).shape == x.shape
