"""The Python blocks of README.md and docs: they run, and print what the page shows."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys

import pytest

import keyfold as kf
from tests.helpers.cudnn import need
from tests.helpers.pages import blocks, comments, run, same
from tests.helpers.paths import ROOT

PAGES = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "examples/native/README.md",
    *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md")),
]
# They build the plugins that they load: tests/native/test_plugin_device.py, test_guide.py.
RUN_ELSEWHERE = ("docs/plugins.md", "docs/your-own-backend.md")


def with_blocks():
    pages = [page for page in PAGES if (ROOT / page).exists() and page not in RUN_ELSEWHERE]
    return [page for page in pages if any(blocks(page))]


@pytest.mark.parametrize("page", with_blocks())
def test_the_blocks_of_a_page_print_what_it_shows(page, c_library, tmp_path, monkeypatch):
    if page == "docs/torch.md" and importlib.util.find_spec("torch") is None:
        pytest.skip(f"{page} needs PyTorch, which isn't installed")
    # Pages that load the example's library expect it where they were told to compile it.
    shutil.copy(c_library, tmp_path / "libscale.so")
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "shop"}
    if page == "docs/native-kernels.md":
        # Its blocks continue the example beside the C source.
        for block in blocks("examples/native/README.md"):
            run(block, "examples/native/README.md", names)
    for block in blocks(page):
        if not block.needs_libcudnn:
            run(block, page, names)


@pytest.mark.parametrize(
    "page", [page for page in with_blocks() if any(block.needs_libcudnn for block in blocks(page))]
)
def test_the_blocks_that_need_libcudnn_print_what_the_page_shows(
    page, tmp_path, monkeypatch, request
):
    need(request.node.name)
    monkeypatch.chdir(tmp_path)
    # Counts of builds are those of a process that has built nothing yet.
    kf.cudnn.plan_cache.clear()
    names = {"__name__": "shop"}
    for block in blocks(page):
        run(block, page, names)


def test_the_comparison_of_outputs_finds_differences():
    assert same("a ... c\n...\nend", "a bb c\n1\n2\nend\n")
    assert not same("a ... c", "a\nb c")
    assert not same("[2. 2.]", "[2. 3.]")
    assert not same("", "more")
    assert comments("print(1)  # 1\nx = 2  # two\nprint(\n    2,\n)  # 2\n") == "1\n2\n"


def test_the_blocks_of_the_readme_go_into_the_plain_prompt():
    """Pasted line by line: no block ends a statement that the prompt still reads."""
    source = "\n\n".join(block.source.strip() + "\n" for block in blocks("README.md"))
    done = subprocess.run(
        [sys.executable, "-i", "-q"],
        input=source,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHON_BASIC_REPL": "1", "PYTHONSTARTUP": ""},
        check=False,
    )
    assert "Error" not in done.stderr, done.stderr
    assert "[2. 2. 2.]" in done.stdout


def test_the_picture_in_the_readme_has_every_key_in_order():
    picture = re.search(r"```text\n(.*?Tracer.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    names = [key.name for key in reversed(list(kf.DispatchKey)) if key.name in vars(kf.DispatchKey)]
    shown = [word for word in re.findall(r"\w+", picture[1]) if word in names]
    assert shown == names


@pytest.mark.parametrize("page", [page for page in PAGES if (ROOT / page).exists()])
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if "://" not in target and not target.startswith("mailto:"):
            assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"
