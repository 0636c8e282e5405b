"""The folder of plans: damaged and foreign files, and folders that can't be written."""

import errno
import json
import os
import random
import stat
import sys
import tempfile
import time
from pathlib import Path

import pytest

import keyfold as kf
from tests.cudnn.planning import CARD, NOT_KEPT, READ, STAND_IN, UNUSED, build, idle, product, run


@pytest.fixture
def plans(stand_in, folder):
    """A folder with the plan of `product`, made by the stand-in."""
    stand_in("plan")
    assert build().steps[0] == "a stand-in's plan"
    return folder


def only(folder):
    """The one file of a folder."""
    (path,) = folder.iterdir()
    return path


def rewritten(path, change):
    """Changes a file's JSON."""
    entry = json.loads(path.read_text())
    change(entry)
    path.write_text(json.dumps(entry))


def is_refused(path, reason, graph=None, device=CARD):
    """The file isn't used, for the reason; a new plan replaces it, which is used."""
    steps = build(graph, device).steps
    assert steps[0].startswith(f"{UNUSED}{path}"), steps
    assert reason in steps[0], steps
    assert not any(step.startswith((READ, NOT_KEPT)) for step in steps), steps
    assert build(graph, device).steps[0] == f"{READ} {path.parent}"


def test_a_plan_is_kept_whole_and_read_by_another_process(plans):
    path = only(plans)
    entry = json.loads(path.read_text())
    assert entry["manifest"]["card"] == CARD
    assert entry["manifest"]["cudnn"] == "9.27.0"
    assert path.name.startswith(product().signature())
    told = run("print(build().steps)", plans, stand_in=True)
    assert told == f"['{READ} {plans}', \"a stand-in's plan\"]\n"


def test_the_folder_is_made_with_those_above_it(plans):
    deep = plans / "not" / "yet" / "there"
    kf.cudnn.plan_cache.keep_in(deep)
    build()
    assert only(deep).name == next(path.name for path in plans.iterdir() if path.is_file())


@pytest.mark.parametrize("share", [0, 0.01, 0.3, 0.6, 0.9, 0.999])
def test_a_truncated_file_is_skipped(plans, share):
    path = only(plans)
    text = path.read_bytes()
    path.write_bytes(text[: int(len(text) * share)])
    is_refused(path, "it is damaged: ")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\x00" * 1000, "it is damaged: "),
        (b"\xff\xfe\xfd", "can't be read: "),
        (b"a plan, a plan", "it is damaged: "),
        (b"[" * 100_000, "it is damaged: "),
        (b"{}", "it is damaged: missing field `manifest`"),
        (b"null", "it is damaged: "),
        (b'{"manifest": {}, "plan": ""}', "it is damaged: missing field `format`"),
        (b'{"manifest": {}, "plan": "", "more": 1}', "it is damaged: "),
    ],
    ids=["zeros", "no UTF-8", "no JSON", "deep", "empty", "null", "no format", "more fields"],
)
def test_a_file_of_something_else_is_skipped(plans, content, reason):
    path = only(plans)
    path.write_bytes(content)
    is_refused(path, reason)


def test_files_with_one_changed_byte_are_read_or_skipped_with_a_reason(plans):
    path = only(plans)
    text = path.read_bytes()
    rng = random.Random(5)
    skipped = 0
    for _ in range(200):
        changed = bytearray(text)
        changed[rng.randrange(len(text))] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        steps = build().steps
        assert steps[-1] == "a stand-in's plan"
        assert steps[0].startswith((f"{READ} {plans}", f"{UNUSED}{path}")), (bytes(changed), steps)
        skipped += steps[0].startswith(UNUSED)
    # Every byte of it counts: the manifest is compared, and the rest has a digest.
    assert skipped == 200


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("format", 3, "it has format 3, and this version reads 2"),
        ("format", 0, "it has format 0, and this version reads 2"),
        ("cudnn", "9.99.0", "it is of cuDNN 9.99.0, and 9.27.0 is loaded"),
        ("cudnn", "8.9.7", "it is of cuDNN 8.9.7, and 9.27.0 is loaded"),
        ("digest", "0" * 32, "it is damaged: the plan's digest is another one"),
        ("graph", "01", "it is of another graph or policy"),
        ("format", "1", "it is damaged: "),
        ("policy", {"choice": "fastest"}, "it is damaged: "),
    ],
)
def test_a_foreign_manifest_is_skipped(plans, key, value, reason):
    path = only(plans)
    rewritten(path, lambda entry: entry["manifest"].update({key: value}))
    is_refused(path, reason)


def test_a_plan_that_was_edited_is_skipped(plans):
    path = only(plans)

    def edit(entry):
        assert '"index":7' in entry["plan"]
        entry["plan"] = entry["plan"].replace('"index":7', '"index":8')

    rewritten(path, edit)
    is_refused(path, "it is damaged: the plan's digest is another one")


def test_a_plan_of_another_card_is_skipped(plans):
    path = only(plans)
    build(device="l40s")
    (other,) = set(plans.iterdir()) - {path}
    other.replace(path)
    is_refused(path, "it is for l40s, and not for a100")


def test_a_plan_of_a_card_of_that_name_with_other_properties_is_skipped(plans):
    path = only(plans)
    data = json.loads(kf.cudnn.CardProfile.named(CARD).to_json())
    data["properties"]["multiProcessorCount"] = 100
    build(device=kf.cudnn.CardProfile.from_json(json.dumps(data)))
    (other,) = set(plans.iterdir()) - {path}
    other.replace(path)
    is_refused(path, "it is for a card a100 with other properties")


def test_files_of_others_stay_in_the_folder(plans):
    size = only(plans).stat().st_size
    names = ("package.json", "download.partial", "2026-notes.json", "12-x.partial")
    theirs = [plans / name for name in names]
    for path in theirs:
        path.write_text("x" * size)
        os.utime(path, (time.time() - 5000,) * 2)
    kf.cudnn.plan_cache.keep_in(plans, max_bytes=size + 10)
    assert build(product(32)).steps == ["a stand-in's plan"]
    assert all(path.exists() for path in theirs)
    assert len(list(plans.iterdir())) == len(theirs) + 1


@pytest.mark.usefixtures("libcudnn")
def test_what_progress_raises_while_a_kept_plan_is_read_cancels(folder):
    build()
    told = []

    def progress(_done, _total, what):
        told.append(what)
        if len(told) == 1:
            raise KeyError(what)

    with pytest.raises(KeyError):
        build(progress=progress)
    assert told == ["read the graph"]
    assert build().steps[0] == f"{READ} {folder}"


def test_a_plan_of_another_graph_or_policy_is_skipped(plans):
    path = only(plans)
    for graph, more in [(product(32), {}), (product(), {"tf32": True})]:
        build(graph, **more)
        (other,) = set(plans.iterdir()) - {path}
        other.replace(path)
        is_refused(path, "it is of another graph or policy, whose file has the same name")


def test_a_folder_in_a_files_place_is_skipped_and_stays(plans):
    path = only(plans)
    path.unlink()
    path.mkdir()
    (path / "precious").write_text("a user's")
    steps = build().steps
    assert steps[0].startswith(f"{UNUSED}{path} can't be read: "), steps
    assert steps[1].startswith(f"{NOT_KEPT}the folder of plans {plans}: "), steps
    assert (path / "precious").read_text() == "a user's"
    assert [entry.name for entry in plans.iterdir()] == [path.name]


def test_a_file_in_the_folders_place_is_a_step(plans):
    place = plans / "notes"
    place.write_text("a user's")
    kf.cudnn.plan_cache.keep_in(place)
    steps = build().steps
    assert steps[0].startswith(f"{UNUSED}{place}/"), steps
    assert steps[1].startswith(f"{NOT_KEPT}the folder of plans {place}: "), steps
    assert place.read_text() == "a user's"


def test_a_folder_that_cannot_be_made_is_a_step(plans):
    kf.cudnn.plan_cache.keep_in("/proc/no-plans-here")
    steps = build().steps
    assert steps[0].startswith(f"{NOT_KEPT}the folder of plans /proc/no-plans-here: "), steps
    assert steps[1] == "a stand-in's plan"


def test_a_read_only_folder_is_read_and_why_it_is_not_written_is_a_step(stand_in, folder):
    stand_in("plan")
    as_root = os.geteuid() == 0
    # Outside of the tests' own folders, which other users can't enter.
    with tempfile.TemporaryDirectory() as outer:
        plans = Path(outer) / "plans"
        kf.cudnn.plan_cache.keep_in(plans)
        build()
        Path(outer).chmod(0o755)
        plans.chmod(0o555)
        if as_root:
            os.seteuid(65534)
        try:
            read, other = build().steps, build(product(32)).steps
        finally:
            if as_root:
                os.seteuid(0)
            plans.chmod(0o755)
        assert read[0] == f"{READ} {plans}"
        expected = f"{NOT_KEPT}the folder of plans {plans}: {os.strerror(errno.EACCES)}"
        assert other[0].startswith(expected), other
        assert len(list(plans.iterdir())) == 1


def test_a_file_that_may_not_be_read_is_skipped(plans):
    path = only(plans)
    if os.geteuid() == 0:
        # Root may read all. A link to itself can't be read by anybody.
        path.unlink()
        path.symlink_to(path.name)
    else:
        path.chmod(0)
    steps = build().steps
    assert steps[0].startswith(f"{UNUSED}{path} can't be read: "), steps
    assert stat.S_ISREG(path.lstat().st_mode)
    assert build().steps[0] == f"{READ} {plans}"


def test_a_full_disk_is_a_step_and_leaves_nothing(stand_in, folder):
    stand_in("plan")
    code = """
    import resource
    build(product(32))
    # Files above this size can't be written from here on: the disk is full.
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    steps = build().steps
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(steps[0])
    assert steps[1] == "a stand-in's plan"
    build()
    print(build().steps[0])
    """
    full, read = run(code, folder, stand_in=True).splitlines()
    assert full.startswith(f"{NOT_KEPT}the folder of plans {folder}: "), full
    assert os.strerror(errno.EFBIG) in full
    assert read == f"{READ} {folder}"
    assert sorted(path.suffix for path in folder.iterdir()) == [".json", ".json"]


def test_a_plan_above_the_folders_limit_is_not_kept(plans):
    size = only(plans).stat().st_size
    kf.cudnn.plan_cache.keep_in(plans / "small", max_bytes=size - 1)
    steps = build().steps
    expected = (
        f"{NOT_KEPT}the folder of plans {plans / 'small'}: a plan of {size} bytes is above its "
        f"limit of {size - 1}"
    )
    assert steps[0] == expected
    assert not (plans / "small").exists()


def test_the_oldest_plans_go_when_the_folder_is_full(plans):
    first = only(plans)
    size = first.stat().st_size
    kf.cudnn.plan_cache.keep_in(plans, max_bytes=3 * size + size // 2)
    kept = [first]
    for at, width in enumerate((8, 16, 24, 32, 40)):
        # By a second each, whatever the file system's clock is.
        os.utime(kept[-1], (time.time() - 100 + at,) * 2)
        build(product(width))
        new = set(plans.iterdir()) - set(kept)
        kept = [*kept, *new][-3:]
        assert set(plans.iterdir()) == set(kept)
    assert build(product(40)).steps[0].startswith(READ)
    assert not build().steps[0].startswith((READ, UNUSED))


def test_half_written_files_are_left_until_they_are_old(plans):
    old, new = plans / "4000000-0.partial", plans / "4000001-3.partial"
    for path in (old, new):
        path.write_text('{"manifest": {"form')
    os.utime(old, (time.time() - 700,) * 2)
    assert build().steps[0] == f"{READ} {plans}"
    assert old.exists()
    build(product(32))
    assert not old.exists()
    assert new.exists()


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_of_nothing_is_refused(limit, folder):
    with pytest.raises(kf.InvalidValue, match=rf"max_bytes is a number of bytes, not {limit}"):
        kf.cudnn.plan_cache.keep_in(folder, max_bytes=limit)
    assert kf.cudnn.plan_cache.folder == folder


@pytest.mark.usefixtures("libcudnn")
@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "half", "no JSON", "other"])
def test_a_kept_plan_whose_text_libcudnn_does_not_take_is_made_again(
    folder, monkeypatch, helper, text
):
    real = build()
    path = only(folder)
    good = json.loads(json.loads(path.read_text())["plan"])["parts"][0]["json"]
    damaged = {"half": good[: len(good) // 2], "other": good.replace("64", "65")}.get(text, text)
    path.unlink()
    # The stand-in's plan has the digest of what it is, and the real helper reads it.
    with monkeypatch.context() as patch:
        patch.setenv("STAND_IN_TEXT", damaged or "{}")
        patch.setattr(kf.cudnn._library.plans, "patience", 170_000 + len(text))
        base = kf.cudnn._library.base
        program = [sys.executable, "-S", str(STAND_IN), "plan"]
        patch.setattr(kf.cudnn._library, "base", lambda *a: base(*a) | {"helper": program})
        assert build().steps == ["a stand-in's plan"]
    before = idle()
    again = build()
    assert again.steps[0].startswith(f"{UNUSED}{path}: cuDNN "), again.steps
    assert again.steps[1:] == real.steps
    assert build().steps[0] == f"{READ} {folder}"
    assert idle() == before
