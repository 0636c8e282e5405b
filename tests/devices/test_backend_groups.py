"""Groups with several outputs in a backend that is written in Python."""

import numpy as np
import pytest

import keyfold as kf

STEP = kf.ops.keyfold.adam_step_
DROP = kf.ops.keyfold.dropout_threshold


class Fused:
    """A device with steps of Adam in float32 and dropout, and nothing else."""

    def __init__(self):
        self.asked = []
        self.given = []

    def supports(self, method, name, inputs, output):
        self.asked.append((method, name, inputs, output))
        return "float32" in inputs or f"it has no {name} of {inputs[0]}"

    def optim(self, name, inputs, outputs, params):
        self.given.append((name, len(inputs), len(outputs), params))
        (grad,), (x, m, v) = inputs, outputs
        assert not grad.flags.writeable
        m += (1 - params["beta1"]) * (grad - m)
        v += (1 - params["beta2"]) * (grad * grad - v)
        mean = m / (1 - params["beta1"] ** params["step"])
        size = np.sqrt(v / (1 - params["beta2"] ** params["step"])) + params["eps"]
        x -= params["lr"] * mean / size

    def dropout(self, name, inputs, outputs, params):
        self.given.append((name, len(inputs), len(outputs), params))
        (x,), (out, mask) = inputs, outputs
        if params["seed"] == 13:
            return NotImplemented
        if params["seed"] == 14:
            return outputs
        mask[...] = np.arange(x.size).reshape(x.shape) % 2 == 0
        out[...] = np.where(mask, x * params["scale"], 0)
        return None


@pytest.fixture
def fused(npu):
    handle = kf.register_backend("npu", Fused())
    yield handle
    handle.remove()


def on(device, values, dtype="float32"):
    return kf.asarray(np.asarray(values, dtype=dtype)).to(device)


def test_the_groups_are_listed(fused):
    (row,) = [backend for backend in kf.backends() if backend.device_type == "npu"]
    assert row.groups == ("optim", "dropout")


def test_methods_write_several_outputs_and_get_parameters_by_name(fused):
    rng = np.random.default_rng(0)
    x, grad, m = rng.standard_normal((3, 2, 3)).astype("float32")
    v = rng.uniform(0, 1, (2, 3)).astype("float32")
    expected = [on("cpu", array) for array in (x, grad, m, v)]
    got = [on("npu", array) for array in (x, grad, m, v)]
    for tensors in (expected, got):
        STEP(*tensors, step=3, lr=0.25)
    for one, other in zip(got, expected, strict=True):
        assert one.device == "npu:0"
        np.testing.assert_allclose(one.cpu().numpy(), other.numpy(), rtol=1e-5)
    (name, inputs, outputs, params) = fused.backend.given[0]
    assert (name, inputs, outputs) == ("adam", 1, 3)
    assert params["step"] == 3
    assert (params["lr"], params["beta1"], params["amsgrad"]) == (0.25, 0.9, 0)
    asked = [question for question in fused.backend.asked if question[0] == "optim"]
    assert asked[0] == ("optim", "adam", ("float32",), ("float32",) * 3)


def test_results_are_tuples(fused):
    x = on("npu", [1.0, 2.0, 3.0, 4.0])
    kept, mask = DROP(x, 2**31, 2.0, 2**40, 3)
    assert kept.cpu().tolist() == [2.0, 0.0, 6.0, 0.0]
    assert mask.cpu().tolist() == [True, False, True, False]
    params = fused.backend.given[-1][3]
    assert params == {"threshold": 2**31, "scale": 2.0, "seed": 2**40, "offset": 3}


def test_refusals_and_mistakes_name_the_method(fused, raises_saying):
    x = on("npu", [1.0, 2.0])
    with raises_saying(
        kf.NotSupported, "keyfold::dropout_threshold", "it has no dropout of float64"
    ):
        DROP(on("npu", [1.0], "float64"), 5, 1.0, 1)
    with raises_saying(kf.NotSupported, "method 'dropout'", "NotImplemented"):
        DROP(x, 5, 1.0, 13)
    with raises_saying(kf.KernelReturnError, "method 'dropout'", "writes into its outputs"):
        DROP(x, 5, 1.0, 14)


def test_a_group_without_a_method_is_refused_by_name(fused, raises_saying):
    fused.remove()

    class Dropping:
        dropout = Fused.dropout

    handle = kf.register_backend("npu", Dropping())
    tensors = [on("npu", [1.0, 2.0]) for _ in range(4)]
    with raises_saying(
        kf.NotSupported, "keyfold::adam_step_", "isn't supported by backend", "optim"
    ):
        STEP(*tensors, step=1)
    handle.remove()


def test_what_is_no_method_is_refused(npu, raises_saying):
    class Wrong:
        norm = 2.0

    with raises_saying(kf.BindingError, "backend 'Wrong'", "norm is a method, not float"):
        kf.register_backend("npu", Wrong())


def test_outputs_of_pooling_are_contiguous_and_out_may_be_strided(npu):
    class Halves:
        def pointwise(self, name, inputs, out):
            np.copyto(out, inputs[0])

        def pool(self, name, inputs, outputs, params):
            (x,), (out,) = inputs, outputs
            assert out.flags.c_contiguous
            pairs = x.reshape(*x.shape[:-1], -1, 2)
            out[...] = pairs.max(-1) if name == "max" else pairs.mean(-1)

    handle = kf.register_backend("npu", Halves())
    x, wide = on("npu", np.arange(8.0).reshape(1, 2, 4)), on("npu", np.full((1, 2, 4), -1.0))
    kf.ops.aten.avg_pool2d.out(x, (1, 2), out=wide[..., ::2])
    assert wide.cpu().tolist() == [[[0.5, -1, 2.5, -1], [4.5, -1, 6.5, -1]]]
    handle.remove()
