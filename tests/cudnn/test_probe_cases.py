"""The cases that the real libcudnn was asked, as graphs: all that it planned can be said."""

from collections import Counter

import keyfold as kf
from tests.cudnn.probe.cases import cases, planned, refused
from tests.cudnn.probe.draft import Absent

GROUPS = {
    "resample": 98, "norm": 144, "reduction": 276, "pointwise": 315, "matmul": 79, "conv": 290,
    "move": 69, "random": 21, "other": 24, "attention": 162,
}  # fmt: skip
# Cases that the validator refuses, or that graphs can't say. libcudnn refuses them, too.
NOT_SAID = {"resample": 12, "norm": 3, "pointwise": 27, "random": 21, "other": 12}


def test_each_case_has_an_id_of_its_own():
    ids = [case for case, _ in cases()]
    assert Counter(case.partition("/")[0] for case in ids) == GROUPS
    assert len(set(ids)) == len(ids) == 1478


def test_every_case_that_was_planned_is_a_valid_graph():
    table = planned()
    assert sum(map(len, table.values())) == 3480
    build = dict(cases())
    assert not set(table) - set(build)
    not_said = Counter()
    for case, make in build.items():
        try:
            make().validate()
        except (kf.Error, Absent):
            assert case not in table
            not_said[case.partition("/")[0]] += 1
    assert not_said == NOT_SAID


def test_what_was_refused_on_an_h100_was_asked_and_can_be_said():
    table, build = planned(), dict(cases())
    for case, why in refused().items():
        assert why in ("layout", "rank", "order", "move")
        assert "h100" not in table.get(case, [])
        build[case]().validate()


def test_cases_that_were_planned_are_different_graphs_and_survive_json():
    build = dict(cases())
    signatures = set()
    for case in planned():
        graph = build[case]()
        signatures.add(graph.signature())
        again = kf.cudnn.Graph.from_json(graph.to_json())
        assert again.to_json() == graph.to_json()
        assert again.signature() == graph.signature()
    assert len(signatures) == len(planned()) == 915
