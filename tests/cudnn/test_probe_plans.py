"""The real libcudnn plans the cases that it planned before, and takes back the plans it wrote."""

import pytest

from tests.cudnn.probe.plan import PROFILES, part, planned, sweep, table

pytestmark = pytest.mark.one_python

PAIRS = [(case, profile) for case, on in planned().items() for profile in on]
# `python -m tests.cudnn.probe.plan` plans all of them. Most of the time is libcudnn's compiler, so
# most cases are planned for one card alone, and each group's first one for all of them.
CHOSEN = part(PAIRS, 29)


def test_the_chosen_have_each_group_on_each_profile_and_many_cases():
    groups = {(case.partition("/")[0], profile) for case, profile in PAIRS}
    assert {(case.partition("/")[0], profile) for case, profile in CHOSEN} == groups
    assert {profile for _, profile in CHOSEN} == set(PROFILES)
    assert (len(PAIRS), len(CHOSEN)) == (3480, 152)
    # Of 270 operations, each in a dtype and a layout.
    assert len({case.rsplit("/", 2)[0] for case, _ in CHOSEN}) == 125


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.usefixtures("libcudnn")
def test_plans_are_made_kept_and_read_again(profile):
    chosen = [pair for pair in CHOSEN if pair[1] == profile]
    rows = list(sweep(chosen))
    assert len(rows) == len(chosen)
    wrong = [row for row in rows if row["verdict"] != "reloaded"]
    assert not wrong, f"{table(rows)}\n{wrong[:5]}"
