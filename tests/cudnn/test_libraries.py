"""Which libcudnn is found, and why one isn't used."""

import os
import shutil
from pathlib import Path

import pytest

import keyfold as kf
from tests.cudnn.planning import build, product
from tests.helpers.compiler import compile_c

FILE = "libcudnn.so.9"
VARIABLE = "KEYFOLD_CUDNN_LIBRARY"
VERSION = "#include <stddef.h>\nsize_t cudnnGetVersion(void); size_t cudnnGetVersion(void) "

pytestmark = pytest.mark.usefixtures("no_folder")


@pytest.fixture
def packages(monkeypatch, tmp_path):
    """A folder of packages of the test's own, and with it helpers of its own."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.setattr(kf.cudnn._library, "packages", lambda: [str(folder)])
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    return folder


@pytest.fixture
def names(monkeypatch, packages):
    """Has the environment name a library."""
    return lambda path: monkeypatch.setenv(VARIABLE, str(path))


@pytest.fixture
def compiled(tmp_path):
    """Makes a library of C."""

    def compiled(source, *flags):
        (tmp_path / "library.c").write_text(source)
        return compile_c(tmp_path / "library.c", tmp_path / FILE, *flags)

    return compiled


def put(folder, *names):
    """Makes files in the place where a package has its libraries."""
    (folder / "lib").mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / "lib" / name).write_bytes(b"")
    return folder / "lib" / names[0]


def found(packages):
    """The libraries in a folder: path, origin, refusal."""
    all_ = kf._core._cudnn_libraries([str(packages)])
    return [entry for entry in all_ if Path(entry[0]).is_relative_to(packages)]


def refuses(path, *reasons):
    with pytest.raises(kf.LibraryLoadError) as raised:
        build()
    text = str(raised.value)
    assert text.startswith(f"cuDNN's library {path}: "), text
    for reason in reasons:
        assert reason in text, text


def test_a_name_of_nothing_is_refused_before_a_helper_is_started(names, tmp_path):
    names(tmp_path / "nothing.so")
    refuses(tmp_path / "nothing.so", f"{VARIABLE} names it, and there is no such file")
    (path, origin, refusal) = kf._core._cudnn_libraries([])[0]
    assert path == tmp_path / "nothing.so"
    assert origin == "named by KEYFOLD_CUDNN_LIBRARY"
    assert refusal == f"{VARIABLE} names it, and there is no such file"


def test_another_library_is_not_used_in_the_place_of_the_named_one(libcudnn, names, tmp_path):
    names(tmp_path / "nothing.so")
    real = Path(libcudnn).parents[3]
    assert [path.name for path, _, _ in kf._core._cudnn_libraries([str(real)])] == ["nothing.so"]


def test_a_text_is_refused_by_the_loader(names, tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("cuDNN is somewhere else. " * 10)
    names(text)
    refuses(text, "can't be loaded: ", "invalid ELF header")


def test_a_library_without_symbols_is_refused(names, compiled):
    library = compiled("int nothing(void); int nothing(void) { return 0; }")
    names(library)
    refuses(library, "has no function cudnnGetVersion: it isn't cuDNN 9")


@pytest.mark.parametrize(
    ("number", "version"),
    [(8907, "8.9.7"), (7605, "7.6.5"), (100100, "10.1.0"), (110203, "11.2.3"), (0, "0.0.0")],
)
def test_another_major_version_is_refused(names, compiled, number, version):
    library = compiled(f"{VERSION}{{ return {number}; }}")
    names(library)
    refuses(library, f"is version {version}, and 9 is needed")


@pytest.mark.parametrize(
    ("more", "missing"),
    [
        ("", "cudnnGetCudartVersion"),
        ("size_t cudnnGetCudartVersion(void);", "cudnnBackendCreateDescriptor"),
    ],
)
def test_a_version_9_that_lacks_functions_is_refused(names, compiled, more, missing):
    more += " size_t cudnnGetCudartVersion(void) { return 13000; }" if more else ""
    library = compiled(f"{VERSION}{{ return 92700; }}\n{more}")
    names(library)
    refuses(library, f"has no function {missing}: it isn't cuDNN 9, or a part of it is missing")


def test_a_library_that_ends_the_process_as_it_is_loaded_ends_the_helper_alone(names, compiled):
    constructor = "__attribute__((constructor)) static void end(void) { __builtin_trap(); }"
    names(compiled(constructor))
    with pytest.raises(kf.LibraryLoadError, match=r"died by signal 4 .*load libcudnn"):
        build()


def test_a_library_whose_version_hangs_is_ended(names, compiled, patience):
    patience(1_000)
    names(compiled(f'{VERSION}{{ for (;;) {{ __asm__ volatile(""); }} }}'))
    with pytest.raises(kf.LibraryLoadError, match=r"said nothing for 1 s .*load libcudnn"):
        build()


def test_the_packages_libraries_say_what_they_lack(packages):
    full, jit = packages / "nvidia" / "cudnn", packages / "nvidia" / "cudnn_jit"
    put(full, FILE, "libcudnn_graph.so.9", "libcudnn_engines_precompiled.so.9")
    put(jit, FILE)
    refusals = {origin: refusal for _, origin, refusal in found(packages)}
    assert "it needs cuBLAS" in refusals["the package nvidia-cudnn-cu"]
    assert refusals["the package nvidia-cudnn-jit-cu"] == "libcudnn_graph.so.9 isn't beside it"
    # The one that may be used comes first.
    put(jit, "libcudnn_graph.so.9")
    first = found(packages)[0]
    assert first[1:] == ("the package nvidia-cudnn-jit-cu", None)
    # cuBLAS makes the full one usable.
    put(packages / "nvidia" / "cu13", "libcublasLt.so.13")
    first = found(packages)[0]
    assert first[1:] == ("the package nvidia-cudnn-cu", None)


@pytest.mark.skipif(
    any(origin == "the system" for _, origin, _ in kf._core._cudnn_libraries([])),
    reason="the system has a libcudnn",
)
@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ([FILE], "libcudnn_graph.so.9 isn't beside it"),
        ([FILE, "libcudnn_graph.so.9", "libcudnn_engines_precompiled.so.9"], "it needs cuBLAS"),
    ],
)
def test_a_library_that_lacks_parts_is_not_loaded(packages, files, reason):
    refuses(put(packages / "nvidia" / "cudnn", *files), reason)


@pytest.mark.skipif(
    any(origin == "the system" for _, origin, _ in kf._core._cudnn_libraries([])),
    reason="the system has a libcudnn",
)
def test_without_a_library_the_error_says_where_it_was_looked_for(packages):
    with pytest.raises(kf.LibraryLoadError) as raised:
        build()
    for part in (VARIABLE, "pip install nvidia-cudnn-jit-cu13", FILE, "LD_LIBRARY_PATH"):
        assert part in str(raised.value)
    # keyfold's own executor needs none.
    assert product().build().engine == "reference"


def test_libraries_of_the_loaders_path_are_found_once(packages, monkeypatch, tmp_path):
    first = put(tmp_path / "one", FILE, "libcudnn_graph.so.9")
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / FILE).symlink_to(first)
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{first.parent}::{tmp_path / 'two'}")
    listed = kf._core._cudnn_libraries([])
    assert [entry for entry in listed if Path(entry[0]).is_relative_to(tmp_path)] == [
        (first, "the system", None)
    ]


def test_the_real_library_is_used_from_a_folder_of_packages(libcudnn, packages):
    real = Path(libcudnn)
    if real.parents[2].name != "nvidia":
        pytest.skip(f"{real} isn't in a package")
    (packages / "nvidia").symlink_to(real.parents[2])
    assert build().engine.startswith("cuDNN engine ")


def test_the_real_library_alone_is_an_error_and_not_an_end_of_this_process(
    libcudnn, names, tmp_path
):
    alone = tmp_path / "alone" / FILE
    alone.parent.mkdir()
    shutil.copy(libcudnn, alone)
    names(alone)
    assert "LD_LIBRARY_PATH" not in os.environ
    # libcudnn calls abort() where a part of it isn't there.
    with pytest.raises(kf.LibraryLoadError, match=r"libcudnn_graph.so.9 isn't beside it"):
        build()


def test_the_named_full_library_is_not_loaded_without_cublas(libcudnn, names, tmp_path):
    full = tmp_path / "full"
    full.mkdir()
    for path in Path(libcudnn).parent.iterdir():
        (full / path.name).symlink_to(path)
    (full / "libcudnn_engines_precompiled.so.9").write_bytes(b"")
    names(full / FILE)
    refuses(full / FILE, "it needs cuBLAS")
