"""torch's memory moves, shrinks and is written while views of it live: they follow, or raise."""

from __future__ import annotations

import pickle
import threading
import warnings

import numpy as np
import pytest

import keyfold as kf

with warnings.catch_warnings():
    # torch warns of its own deprecated things at import.
    warnings.simplefilter("ignore")
    torch = pytest.importorskip("torch", reason="torch isn't installed")
    from torch import multiprocessing

aten = kf.ops.aten


def churn():
    """Memory of the size that was freed, in torch's and NumPy's hands."""
    return [torch.full((100,), 7.0) for _ in range(64)], [np.full(100, 9.0) for _ in range(64)]


def share(t):
    t.share_memory_()


def share_by_name(t):
    strategy = multiprocessing.get_sharing_strategy()
    multiprocessing.set_sharing_strategy("file_system")
    try:
        t.share_memory_()
    finally:
        multiprocessing.set_sharing_strategy(strategy)


def share_module(t):
    module = torch.nn.Module()
    module.register_buffer("t", t)
    module.share_memory()


def send(t):
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    queue.put(t)


def write_a_lazy_clone(t):
    """Storage that is shared until it is written: the write gives the tensor other memory."""
    clone = torch._lazy_clone(t)
    t.add_(0.0)
    del clone


def out_of_band(r):
    """A tensor pickled with its elements beside the stream."""
    buffers = []
    stream = pickle.dumps(r, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(stream, buffers=buffers)


MOVES = [share, share_by_name, share_module, send, write_a_lazy_clone]


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize(
    "view",
    [
        pytest.param(kf.asarray, id="asarray"),
        pytest.param(kf.from_dlpack, id="from_dlpack"),
        pytest.param(lambda t: kf.asarray(t)[10:90], id="indexed"),
        pytest.param(lambda t: kf.asarray(t[10:90]), id="of a view"),
        pytest.param(lambda t: aten.reshape(t, [10, 10]), id="reshape"),
        pytest.param(lambda t: aten.transpose(aten.reshape(t, [4, 25]), 0, 1), id="transpose"),
    ],
)
def test_a_view_follows_memory_that_moves(view, move):
    t = torch.zeros(100)
    before = t.data_ptr()
    r = view(t)
    move(t)
    assert t.data_ptr() != before
    junk = churn()
    aten.fill_(r, 5.0)
    count = 1
    for n in r.shape:
        count *= n
    assert t.sum().item() == 5.0 * count
    t.fill_(3.0)
    assert aten.sum(r).item() == 3.0 * count
    assert r.tolist() == (r + 0.0).tolist()
    assert junk[0][0][0] == 7.0


def test_torch_writes_to_a_result_that_shares_memory():
    t = torch.zeros(100)
    r = aten.reshape(t, [10, 10])
    t.share_memory_()
    junk = churn()
    r.fill_(5.0)
    assert t.tolist() == [5.0] * 100
    assert r.data_ptr() == t.data_ptr()
    assert junk[1][0][0] == 9.0


def test_every_way_to_read_follows():
    t = torch.arange(6.0).reshape(2, 3)
    r = kf.asarray(t)
    number = kf.asarray(t[1, 2])
    t.share_memory_()
    junk = churn()
    t.mul_(2.0)
    assert r.tolist() == [[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]]
    assert r[1, 2].item() == 10.0
    assert float(number) == 10.0
    assert r.data_ptr() == t.data_ptr()
    assert np.asarray(r).tolist() == r.tolist()
    assert np.from_dlpack(r).tolist() == r.tolist()
    assert torch.from_dlpack(r).tolist() == r.tolist()
    assert "10." in repr(r)
    assert aten.matmul(r, aten.transpose(r, 0, 1)).tolist() == [[20.0, 56.0], [56.0, 200.0]]
    assert aten.softmax(r, 1).shape == (2, 3)
    assert aten.cat([r, r]).shape == (4, 3)
    assert aten.clone(r).tolist() == r.tolist()
    assert len(junk[0]) == 64


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize(
    "export",
    [
        pytest.param(np.asarray, id="asarray"),
        pytest.param(np.array, id="array"),
        pytest.param(lambda r: r.numpy(), id="numpy"),
        pytest.param(np.from_dlpack, id="from_dlpack"),
        pytest.param(lambda r: np.from_dlpack(r, copy=True), id="from_dlpack, a copy"),
        pytest.param(torch.from_dlpack, id="torch"),
        pytest.param(lambda r: pickle.loads(pickle.dumps(r, protocol=5)), id="pickle"),
        pytest.param(out_of_band, id="pickle, out of band"),
    ],
)
def test_what_is_handed_out_stays_as_it_was(export, move):
    """An address that was handed out can't follow: the memory behind it is nobody else's."""
    t = torch.arange(100.0)
    given = export(kf.asarray(t)[10:90])
    move(t)
    junk = churn()
    t.zero_()
    assert given.tolist() == [float(n) for n in range(10, 90)]
    assert junk[0][0][0] == 7.0


@pytest.mark.parametrize("export", [np.asarray, np.from_dlpack, lambda r: r.numpy()])
def test_a_write_to_what_was_handed_out_isnt_lost_in_silence(export):
    t = torch.zeros(3)
    given = export(kf.asarray(t))
    with pytest.raises(ValueError, match="read-only"):
        given[0] = 5.0
    given = np.array(kf.asarray(t))
    given[0] = 5.0
    assert t.tolist() == [0.0, 0.0, 0.0]


def test_an_array_that_must_share_memory_is_refused(raises_saying):
    r = kf.asarray(torch.zeros(3))
    words = "another library may move this tensor's memory"
    with raises_saying(kf.InvalidValue, words, "copy=False"):
        np.asarray(r, copy=False)
    with raises_saying(kf.ExchangeError, words, "copy=True"):
        np.from_dlpack(r, copy=False)
    with raises_saying(kf.ExchangeError, words, "max_version"):
        r.__dlpack__()
    assert kf.from_dlpack(r.__dlpack__(copy=True)).tolist() == [0.0, 0.0, 0.0]
    assert np.asarray(kf.asarray(torch.zeros(0)), copy=False).shape == (0,)


def test_a_result_in_numpys_kind_stays_as_it_was(op):
    t = torch.full((100,), 3.0)
    operator, _ = op("numpys(Tensor x) -> Tensor", lambda x: kf.asarray(t))
    result = operator(np.ones(1))
    t.share_memory_()
    junk = churn()
    t.zero_()
    assert isinstance(result, np.ndarray)
    assert result.flags.writeable
    assert result.tolist() == [3.0] * 100
    assert len(junk[0]) == 64


def test_keyfolds_own_functions_share_what_numpy_gets_a_copy_of():
    t = torch.zeros(100)
    views = [kf.from_dlpack(kf.asarray(t)), kf.asarray(kf.asarray(t)), kf.asarray(t).detach()]
    t.share_memory_()
    junk = churn()
    for view in views:
        view += 1.0
    assert t.tolist() == [3.0] * 100
    assert len(junk[0]) == 64


def test_what_is_saved_for_backward_follows():
    t = torch.full((100,), 3.0)
    x = kf.asarray(np.ones(100, np.float32)).requires_grad_()
    loss = (x * kf.asarray(t)).sum()
    t.share_memory_()
    junk = churn()
    loss.backward()
    assert x.grad.tolist() == [3.0] * 100
    assert len(junk[0]) == 64


def test_a_trace_and_a_batch_follow():
    t = torch.full((4,), 3.0)
    held = kf.asarray(t)
    graph = kf.trace(lambda x: x * held, np.ones(4, np.float32))
    t.share_memory_()
    junk = churn()
    assert graph(np.ones(4, np.float32)).tolist() == [3.0] * 4
    assert kf.vmap(lambda x: x + 1.0)(held).tolist() == [4.0] * 4
    assert len(junk[0]) == 64


def test_large_tensors_on_several_threads():
    t = torch.ones(1_000_000)
    r = kf.asarray(t)
    t.share_memory_()
    out = kf.zeros((1_000_000,), dtype="float32")
    aten.add(r, r, out=out)
    assert aten.sum(out).item() == 2_000_000.0
    sums = []
    threads = [threading.Thread(target=lambda: sums.append(aten.sum(r).item())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == [1_000_000.0] * 4


def test_memory_that_moves_inside_the_call_that_keeps_a_view(op):
    t = torch.zeros(100)

    def kernel(x):
        t.share_memory_()
        return aten.mul(x, 2.0)

    operator, _ = op("moving(Tensor x) -> Tensor", kernel)
    with kf.profile():
        assert operator(t).tolist() == [0.0] * 100
    r = kf.asarray(t)
    t.fill_(4.0)
    assert aten.sum(r).item() == 400.0


def test_a_storage_that_the_tensor_gave_up_is_kept():
    t = torch.full((100,), 3.0)
    r = kf.asarray(t)
    t.share_memory_()
    t.set_(torch.zeros(1))
    junk = churn()
    assert r.tolist() == [3.0] * 100
    assert len(junk[0]) == 64


def test_torch_refuses_to_resize_what_is_held():
    t = torch.zeros(100)
    r = kf.asarray(t)
    with pytest.raises(RuntimeError, match="not resizable"):
        t.untyped_storage().resize_(8)
    assert r.tolist() == [0.0] * 100


def test_a_storage_that_shrank_is_refused(monkeypatch, raises_saying):
    def no_numpy(self):
        raise RuntimeError("Numpy is not available")

    # torch refuses to resize memory that NumPy shares; a torch without NumPy has no such check.
    monkeypatch.setattr(torch.Tensor, "numpy", no_numpy)
    t = torch.zeros(100)
    r, result = kf.asarray(t), aten.reshape(t, [10, 10])
    t.untyped_storage().resize_(8)
    for read in [r.tolist, r.sum, lambda: np.asarray(r), lambda: r + r, lambda: r[0].item()]:
        with raises_saying(kf.ExchangeError, "8 bytes", "resized"):
            read()
    with raises_saying(kf.ExchangeError, "8 bytes", "resized"):
        aten.fill_(r, 1.0)
    with raises_saying(kf.ExchangeError, "8 bytes", "resized"):
        kf.asarray(t)
    assert result.shape == (10, 10)
    t.untyped_storage().resize_(400)
    aten.fill_(r, 2.0)
    assert t.tolist() == [2.0] * 100


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda r: aten.fill_(r, 5.0), id="fill_"),
        pytest.param(lambda r: aten.add(r, 1.0, out=r), id="out"),
        pytest.param(lambda r: r.__setitem__(0, 5.0), id="setitem"),
        pytest.param(lambda r: r.__iadd__(1.0), id="in place"),
    ],
)
@pytest.mark.parametrize("make", [kf.asarray, kf.from_dlpack, lambda t: kf.asarray(t)[:2]])
def test_a_write_through_a_view_raises_torchs_version(make, write):
    t = torch.ones(3)
    before = t._version
    write(make(t))
    assert t._version > before


def test_a_write_by_a_result_raises_the_tensors_version():
    t = torch.ones(4)
    r = aten.reshape(t, [2, 2])
    before = t._version
    aten.fill_(r, 2.0)
    r.mul_(2.0)
    assert t._version >= before + 2


def test_a_backward_of_torchs_notices_a_write_through_a_view():
    t = torch.ones(3)
    w = torch.ones(3, requires_grad=True)
    loss = (w * t).sum()
    aten.fill_(kf.asarray(t), 5.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_backward_of_keyfolds_notices_a_write_of_torchs():
    t = torch.ones(3)
    x = kf.asarray(np.ones(3, np.float32)).requires_grad_()
    loss = (x * kf.asarray(t)).sum()
    t.mul_(2.0)
    with pytest.raises(kf.GradientError, match="changed"):
        loss.backward()


def test_memory_of_inference_mode_is_written():
    with torch.inference_mode():
        t = torch.ones(3)
    aten.fill_(kf.asarray(t), 5.0)
    assert t.tolist() == [5.0] * 3
