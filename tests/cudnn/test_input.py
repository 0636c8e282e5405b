"""Bad input from Python: nothing is cut off in silence, and a refused call changes nothing."""

import json
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import keyfold as kf


def graph():
    g = kf.cudnn.Graph(io_data_type="float32", name="input")
    return g, g.tensor(dim=[2, 4, 8, 8], name="x")


def channels(g, count=4):
    return g.tensor(dim=[1, count, 1, 1])


def heads(g, count=4):
    return g.tensor(dim=[2, count, 16, 8])


@pytest.mark.parametrize(
    ("says", "mistake"),
    [
        (r"tensor\(\): dim takes an int, not 2.9", lambda g, x: g.tensor(dim=[2.9, 3])),
        (r"tensor\(\): dim takes a list of ints, not '23'", lambda g, x: g.tensor(dim="23")),
        (r"tensor\(\): dim takes a list of ints, not 5", lambda g, x: g.tensor(dim=5)),
        (r"tensor\(\): stride", lambda g, x: g.tensor(dim=[2], stride=[1.5])),
        (r"set_dim\(\): dim", lambda g, x: x.set_dim([2.5])),
        (r"set_stride\(\): stride", lambda g, x: x.set_stride(["a"])),
        (r"transpose\(\): permutation", lambda g, x: g.transpose(x, [0, 1, 3.7, 2])),
        (r"concatenate\(\): axis", lambda g, x: g.concatenate([x, x], 1.0)),
        (r"groupnorm\(\): groups", lambda g, x: g.groupnorm("training", x, x, x, 2.5)),
        (r"gen_index\(\): axis", lambda g, x: g.gen_index(x, "1")),
        (r"reduction\(\): mode takes a string, not 3", lambda g, x: g.reduction(x, 3)),
        (r"reduction\(\): dim", lambda g, x: g.reduction(x, "add", dim=4)),
        (r"resampling_mode", lambda g, x: g.resample(x, window=2, resampling_mode=None)),
        (r"convolution_mode", lambda g, x: g.conv_fprop(x, x, convolution_mode=1)),
        (
            r"conv_fprop\(\): beta takes a number, not 'b'",
            lambda g, x: g.conv_fprop(x, x, beta="b"),
        ),
        (
            r"layernorm\(\): epsilon takes a number or a tensor of the graph, not 'a'",
            lambda g, x: g.layernorm("training", x, x, x, "a"),
        ),
        (r"sdpa\(\): attn_scale", lambda g, x: g.sdpa(x, x, x, attn_scale="a")),
        (r"the seed of dropout takes an int", lambda g, x: g.sdpa(x, x, x, dropout=(0.1, 1.5, 0))),
        (r"relu\(\): x is a tensor of the graph.*not NoneType", lambda g, x: g.relu(None)),
        (r"from_json\(\) takes a string, not NoneType", lambda g, x: g.from_json(None)),
    ],
)
def test_arguments_of_another_kind_are_refused_by_name(says, mistake):
    g, x = graph()
    before = g.to_json()
    with pytest.raises(kf.BindingError, match=says):
        mistake(g, x)
    assert g.to_json() == before


def test_arguments_that_no_operation_has_are_refused():
    g, x = graph()
    with pytest.raises(TypeError, match="unexpected keyword argument 'foo'"):
        g.relu(x, foo=1)


@pytest.mark.parametrize("method", ["sdpa", "sdpa_fp8", "sdpa_backward"])
def test_attention_and_its_gradient_take_the_same_arguments(method):
    """Each is an attribute or an input of the operation, whichever method is given it."""

    def added(**given):
        g = kf.cudnn.Graph(io_data_type="float32")
        q, bias, length = heads(g), g.tensor(dim=[1, 1, 16, 16]), g.tensor(dim=[2, 1, 1, 1])
        length.set_data_type("int32")
        statistics = g.tensor(dim=[2, 4, 16, 1])
        more = {"sdpa": (), "sdpa_fp8": (1.0,) * 5, "sdpa_backward": (q, q, statistics)}[method]
        tensors = {"bias": bias, "seq_len_q": length, "seq_len_kv": length}
        given = {name: tensors[name] if value is ... else value for name, value in given.items()}
        getattr(g, method)(q, q, q, *more, **given)
        (operation,) = json.loads(g.to_json())["operations"]
        attributes = next(iter(operation["operation"].values()))
        return attributes | dict.fromkeys(operation["inputs"], True), operation

    plain, operation = added(name="n", compute_data_type="float64")
    assert (operation["name"], operation["compute"]) == ("n", "float64")
    masks = {"right_bound": None, "left_bound": None, "alignment": "top_left", "dropout": None}
    for given, changed in [
        ({"attn_scale": 0.5}, {"attn_scale": True}),
        ({"bias": ...}, {"bias": True}),
        (
            {"use_padding_mask": True, "seq_len_q": ..., "seq_len_kv": ...},
            {"seq_len_q": True, "seq_len_kv": True},
        ),
        ({"use_causal_mask": True}, {"right_bound": 0}),
        (
            {"use_causal_mask_bottom_right": True},
            {"right_bound": 0, "alignment": "bottom_right"},
        ),
        ({"sliding_window_length": 3}, {"left_bound": 3}),
        ({"diagonal_alignment": "bottom_right"}, {"alignment": "bottom_right"}),
        ({"diagonal_band_left_bound": 4}, {"left_bound": 4}),
        ({"diagonal_band_right_bound": 5}, {"right_bound": 5}),
        ({"dropout": (0.25, 1, 2)}, {"dropout": 0.25, "seed": True, "offset": True}),
    ]:
        assert masks | added(**given)[0] == masks | plain | changed


@pytest.mark.parametrize(
    "mistake",
    [
        lambda g, x: g.tensor(dim=[2**70]),
        lambda g, x: g.tensor(dim=[1], uid=2**70),
        lambda g, x: x.set_uid(-(2**70)),
        lambda g, x: g.conv_fprop(x, x, padding=2**70),
        lambda g, x: g.sdpa(x, x, x, dropout=(0.1, 2**64, 0)),
    ],
)
def test_integers_beyond_64_bits_are_refused(mistake):
    g, x = graph()
    with pytest.raises(kf.InvalidValue, match="64 bits"):
        mistake(g, x)


def test_integers_of_numpy_are_integers():
    g, x = graph()
    one = np.int64(1)
    assert g.concatenate([x, x], axis=one).dim == [2, 8, 8, 8]
    assert g.groupnorm("training", x, channels(g), channels(g), groups=np.int32(2))[0].dim == x.dim
    assert g.gen_index(x, np.int8(3)).dim == x.dim
    assert g.tensor(dim=np.array([2, 3]), uid=np.int64(-9)).uid == -9


@pytest.mark.parametrize(
    "mistake",
    [
        lambda g, x: g.groupnorm("training", x, channels(g, 3), channels(g, 3), 2),
        lambda g, x: g.layernorm("training", x, channels(g, 3), channels(g, 3), epsilon=0.1),
        lambda g, x: g.rmsnorm("training", x, channels(g, 3)),
        lambda g, x: g.batchnorm(x, channels(g, 3), channels(g), momentum=0.5),
        lambda g, x: g.sdpa(x, heads(g, 3), heads(g, 3), attn_scale=0.5, dropout=(0.1, 1, 2)),
        lambda g, x: g.diagonal_band_mask(x, 0.0, "relu"),
        lambda g, x: g.reshape(x, [3, 3]),
        lambda g, x: g.reshape(x, [2**40, 2**40]),
        lambda g, x: g.reduction(x, "add", dim=[2, 3, 8, 8]),
        lambda g, x: g.reduction(x, "add", dim=[1, 1]),
    ],
)
def test_a_refused_operation_adds_no_scalar_and_no_tensor(mistake):
    g, x = graph()
    made = []
    tensor, g.tensor = g.tensor, lambda **of: made.append(tensor(**of)) or made[-1]
    with pytest.raises(kf.Error):
        mistake(g, x)
    assert g.tensors == [x, *made]
    assert json.loads(g.to_json())["operations"] == []


def test_masks_that_contradict_each_other_are_refused():
    g = kf.cudnn.Graph(io_data_type="float32")
    q = heads(g)
    for masks, says in [
        ({"use_causal_mask": True, "diagonal_band_right_bound": 2}, "use_causal_mask says .* 0"),
        ({"use_causal_mask": True, "use_causal_mask_bottom_right": True}, "alignment"),
        ({"sliding_window_length": 3, "diagonal_band_left_bound": 4}, "3, and .* says 4"),
        ({"use_causal_mask": True, "diagonal_alignment": "bottom_right"}, "alignment"),
        ({"diagonal_alignment": "middle"}, "middle"),
        ({"diagonal_band_left_bound": 0}, "left_bound 0 must be 1 or more"),
    ]:
        with pytest.raises(kf.InvalidValue, match=says):
            g.sdpa(q, q, q, **masks)
    agreed = {"use_causal_mask": True, "diagonal_band_right_bound": 0, "sliding_window_length": 5}
    assert g.sdpa(q, q, q, **agreed)[0].dim == q.dim


def test_an_output_that_beta_reads_needs_its_array():
    g = kf.cudnn.Graph(io_data_type="float32")
    x, w = g.tensor(dim=[1, 2, 4, 4], name="x"), g.tensor(dim=[3, 2, 1, 1], name="w")
    y = g.conv_fprop(x, w, alpha=2.0, beta=0.5).set_output(True).set_name("y")
    rng = np.random.default_rng(0)
    arrays = {t: rng.normal(size=t.dim).astype(np.float32) for t in (x, w)}
    plan = g.build()
    with pytest.raises(kf.InvalidValue, match=r'"y" is added to what its array holds.*out='):
        plan(arrays)
    given = np.full((1, 3, 4, 4), 4.0, np.float32)
    plan(arrays, out={y: given})
    product = np.einsum("nchw,kc->nkhw", arrays[x], arrays[w][:, :, 0, 0])
    np.testing.assert_allclose(given, 2 * product + 2, rtol=1e-5, atol=1e-5)
    for method, other in (("conv_dgrad", [1, 3, 4, 4]), ("conv_wgrad", [1, 3, 4, 4])):
        made = getattr(g, method)(
            *((g.tensor(dim=other), w) if method == "conv_dgrad" else (x, g.tensor(dim=other))),
            beta=1.0,
        )
        assert made.is_virtual


def test_a_loaded_graph_goes_on_with_its_data_types():
    g = kf.cudnn.Graph(
        io_data_type="float16", intermediate_data_type="bfloat16", compute_data_type="float64"
    )
    x = g.tensor(dim=[2, 3], name="x")
    again = kf.cudnn.Graph.from_json(g.to_json())
    for one in (g, again):
        y = one.exp(one["x"])
        assert y.data_type == "bfloat16"
        assert y.set_output(True).data_type == "float16"
        assert one.tensor(dim=[1]).data_type == "float16"
        assert json.loads(one.to_json())["operations"][0]["compute"] == "float64"
    assert again.signature() == g.signature()
    assert json.loads(g.to_json())["defaults"]["io"] == "float16"
    assert x.data_type == "float16"


def test_a_tensor_like_another_has_its_alignment():
    g = kf.cudnn.Graph()
    x = g.tensor(dim=[2, 3], data_type="float32", alignment=4)
    assert x.alignment == 4
    assert g.tensor_like(x).alignment == 4
    assert g.tensor_like(np.zeros(3)).alignment == 16


def test_counters_are_by_operation_and_data_type():
    cache = kf.cudnn.plan_cache
    kind = ("atan2", "float64")
    before = cache.stats().by_kind.get(kind, {"hits": 0, "misses": 0})
    g = kf.cudnn.Graph(io_data_type="float64", compute_data_type="float64")
    a, b = g.tensor(dim=[3, 7]), g.tensor(dim=[3, 7])
    g.atan2(a, b).set_output(True)
    for _ in range(3):
        g.build()
    stats = cache.stats()
    counts = stats.by_kind[kind]
    assert counts["misses"] - before["misses"] == 1
    assert counts["hits"] - before["hits"] == 2
    assert counts["plans"] == 1
    assert stats.by_operation["atan2"]["plans"] == 1
    assert stats.plans == len(cache)
    assert "atan2" in repr(stats)
    assert "evicted" in repr(stats)
    assert "<td>atan2</td>" in stats._repr_html_() or "atan2" in stats._repr_html_()


def test_a_hit_says_whose_names_its_steps_have():
    def named(name):
        g = kf.cudnn.Graph(io_data_type="float32", name=name)
        g.log(g.tensor(dim=[5, 11], name=f"{name}_x"), name=f"{name}_log").set_output(True)
        return g.build().explain()

    assert "planned for an equal graph" not in named("first")
    assert 'planned for an equal graph, "first"' in named("second")


def attention(q, k, v, scale, sees):
    """Attention by loops over nothing but matrices."""
    scores = np.einsum("bhqd,bhkd->bhqk", q, k) * scale
    scores = np.where(sees, scores, -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhqk,bhkd->bhqd", powers / powers.sum(-1, keepdims=True), v)


def test_bands_are_those_of_nvidias_frontend():
    rng = np.random.default_rng(3)
    q, k, v = (rng.normal(size=(1, 2, n, 4)).astype(np.float32) for n in (5, 7, 7))
    i, j = np.indices((5, 7))
    for masks, sees in [
        ({"diagonal_band_left_bound": 2}, j > i - 2),
        ({"sliding_window_length": 1, "use_causal_mask": True}, j == i),
        ({"diagonal_band_right_bound": 1}, j <= i + 1),
        ({"use_causal_mask_bottom_right": True}, j <= i + 2),
        (
            {"diagonal_alignment": "bottom_right", "diagonal_band_left_bound": 2},
            j > i + 2 - 2,
        ),
    ]:
        g = kf.cudnn.Graph(io_data_type="float32")
        tensors = [g.tensor_like(array) for array in (q, k, v)]
        o, _ = g.sdpa(*tensors, attn_scale=0.5, **masks)
        o.set_output(True)
        out = g.build()(dict(zip(tensors, (q, k, v), strict=True)))[o]
        np.testing.assert_allclose(out, attention(q, k, v, 0.5, sees), rtol=1e-5, atol=1e-5)


def test_attention_of_8_bit_floats_has_its_scales():
    # 1, 2 and 0.5 in E4M3.
    codes = np.array([0x38, 0x40, 0x30], np.uint8)
    values = np.array([1.0, 2.0, 0.5], np.float32)
    rng = np.random.default_rng(5)
    picks = [rng.integers(0, 3, size=(1, 1, 4, 8)) for _ in range(3)]
    g = kf.cudnn.Graph(io_data_type="float8_e4m3fn")
    tensors = [g.tensor(dim=[1, 1, 4, 8]) for _ in range(3)]
    o, stats, amax_s, amax_o = g.sdpa_fp8(
        *tensors, 0.5, 0.25, 2.0, 1 / 256, 256.0, attn_scale=0.125, generate_stats=True
    )
    for one in (o, stats, amax_s, amax_o):
        one.set_output(True).set_data_type("float32")
    arrays = [codes[pick] for pick in picks]
    out = g.build()(dict(zip(tensors, arrays, strict=True)))
    q, k, v = (values[pick] for pick in picks)
    want = attention(q * 0.5, k * 0.25, v * 2.0, 0.125, True)
    np.testing.assert_allclose(out[o], want, rtol=0.05)
    np.testing.assert_allclose(out[amax_o].max(), np.abs(out[o]).max(), rtol=1e-6)
    assert 0.25 <= out[amax_s].max() <= 1
    assert out[stats].shape == (1, 1, 4, 1)


def test_the_gradient_of_a_bias_is_returned():
    g = kf.cudnn.Graph(io_data_type="float32")
    q = heads(g)
    bias = g.tensor(dim=[1, 4, 16, 16])
    o, stats = g.sdpa(q, q, q, bias=bias, generate_stats=True)
    grads = g.sdpa_backward(q, q, q, o, o, stats, bias=bias, generate_dbias=True)
    assert [t.dim for t in grads] == [q.dim] * 3 + [bias.dim]


def test_persistent_training_is_a_phase():
    g, x = graph()
    made = g.instancenorm("persistent_training", x, channels(g), channels(g))
    assert made[1].dim == [2, 4, 1, 1]
    g.batchnorm(x, channels(g), channels(g), norm_forward_phase="PERSISTENT_TRAINING")
    phases = [op["operation"]["norm"]["phase"] for op in json.loads(g.to_json())["operations"]]
    assert phases == ["persistent_training"] * 2
    with pytest.raises(kf.InvalidValue, match="batchnorm_inference"):
        g.batchnorm(x, channels(g), channels(g), norm_forward_phase="inference")


def test_the_gradient_of_leaky_relu():
    g = kf.cudnn.Graph(io_data_type="float32")
    dy, x = g.tensor(dim=[4]), g.tensor(dim=[4])
    dx = g.leaky_relu_backward(dy, x, 0.5).set_output(True)
    given = {dy: np.ones(4, np.float32), x: np.array([-1, 2, -3, 4], np.float32)}
    np.testing.assert_array_equal(g.build()(given)[dx], [0.5, 1, 0.5, 1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_of_fork_uses_the_cache_while_threads_of_its_parent_do():
    script = """
        import os, signal, threading, time
        import keyfold as kf

        def graph(n):
            g = kf.cudnn.Graph(io_data_type="float32")
            g.exp(g.tensor(dim=[n, 3])).set_output(True)
            return g

        graphs = [graph(n) for n in range(1, 9)]
        ends = threading.Event()

        def ask():
            while not ends.is_set():
                for g in graphs:
                    g.build()
                kf.cudnn.plan_cache.clear()

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        hung = 0
        for _ in range(60):
            child = os.fork()
            if child == 0:
                for g in graphs[:2]:
                    g.build()
                len(kf.cudnn.plan_cache), kf.cudnn.plan_cache.stats()
                os._exit(0)
            begun = time.monotonic()
            while os.waitpid(child, os.WNOHANG)[0] == 0:
                if time.monotonic() - begun > 60:
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                    hung += 1
                    break
                time.sleep(0.001)
        ends.set()
        for thread in threads:
            thread.join()
        print("hung", hung)
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script)],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.stdout.strip() == "hung 0", done.stderr
