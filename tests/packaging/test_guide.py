"""docs/your-own-backend.md, followed to the letter in an empty folder."""

import pytest

from tests.helpers.guide import Guide, changed, steps
from tests.helpers.pages import same
from tests.helpers.paths import EXAMPLES, ROOT

pytestmark = pytest.mark.one_python

PAGE = "docs/your-own-backend.md"


def test_the_guide_leads_from_an_empty_folder_to_a_green_report(tmp_path):
    (tmp_path / "keyfold").symlink_to(ROOT)
    reader = Guide(tmp_path)
    for step in steps((ROOT / PAGE).read_text(encoding="utf-8")):
        printed = reader.take(step)
        assert same(step.shown or "", printed), f"{PAGE}: $ {step.command}\n{printed}"
    # The files are those of the example, but for those that make the device work late and offer
    # operations with several outputs.
    made = {file.name: file.read_text() for file in (reader.folder / "src").iterdir()}
    example = {file.name: file.read_text() for file in (EXAMPLES / "plugin-device/src").iterdir()}
    assert made.keys() | {"queue.rs", "fused.rs"} == example.keys()
    others = {name for name in made if made[name] != example[name]}
    assert others == {"lib.rs", "operations.rs", "random.rs"}


def test_changes_of_files_are_made_where_their_lines_are():
    text = "one\ntwo\nthree\n"
    assert changed(text, " one\n-two\n+2\n@@\n three\n+four\n") == "one\n2\nthree\nfour\n"
    assert changed(text, "+four\n") == text + "four\n"
