"""Every Python block of README.md and docs runs; the blocks of one file share their names."""

import importlib.util
import re
import shutil

import pytest

from conftest import ROOT

PAGES = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "examples/native/README.md",
    *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md")),
]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page):
    """The Python blocks of a page, each moved down to its line there."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for match in BLOCK.finditer(text):
        yield "\n" * text.count("\n", 0, match.start(1)) + match.group(1)


def with_blocks():
    return [page for page in PAGES if (ROOT / page).exists() and any(blocks(page))]


@pytest.mark.parametrize("page", with_blocks())
def test_the_blocks_of_a_page_run(page, c_library, tmp_path, monkeypatch):
    if page == "docs/torch.md" and importlib.util.find_spec("torch") is None:
        pytest.skip(f"{page} needs PyTorch, which isn't installed")
    # Pages that load the example's library expect it where they were told to compile it.
    shutil.copy(c_library, tmp_path / "libscale.so")
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "readme"}
    if page == "docs/native-kernels.md":
        # Its blocks continue the example beside the C source.
        for source in blocks("examples/native/README.md"):
            exec(compile(source, "examples/native/README.md", "exec"), names)
    for source in blocks(page):
        exec(compile(source, str(ROOT / page), "exec"), names)


def test_the_readme_has_a_first_example():
    assert any("kf." in block for block in blocks("README.md"))


@pytest.mark.parametrize("page", [page for page in PAGES if (ROOT / page).exists()])
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if "://" not in target and not target.startswith("mailto:"):
            assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"
