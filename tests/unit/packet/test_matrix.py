"""The matrix of classes and traits."""

from outrider.packet.finished import Groups
from outrider.packet.matrix import cells, telling, worth, worth_by_class
from outrider.packet.packet import Packet, is_enabled
from tests.unit.packet.made import control, drafted


def of(name: str, language: str = "en") -> dict[str, object]:
    return {
        "policy": {"workload_class": name},
        "metadata": {"workload": name, "language": language},
    }


MIXED = [
    *(drafted(**of("chat", language)) for language in ("en", "de", "en", "de")),
    *(control(**of("chat", language)) for language in ("en", "de", "en", "de")),
    *(drafted(decision="policy_target_only", num_spec_steps=0, **of("art")) for _ in range(3)),
]


def test_worth_counts_what_receipts_count():
    found = worth(Groups.of(MIXED[:8]))
    assert (found.num_decided, found.num_control) == (4, 4)
    assert (found.decisions, found.sources) == ({"on": 4}, {"ngram": 20})
    assert (found.draft_share, found.acceptance_rate) == (1.0, 1 / 3)
    assert (found.mean_acceptance_length, found.num_passes_saved) == (2.0, 20)
    assert found.verdict == "gains"


def test_every_class_stands_by_every_trait_that_tells_requests_apart():
    found = cells(MIXED)
    assert [(each.trait, each.value, each.class_name) for each in found] == [
        ("language", "de", "chat"),
        ("language", "en", "art"),
        ("language", "en", "chat"),
    ]
    assert [each.worth.num_decided for each in found] == [2, 3, 2]


def test_what_repeats_the_class_or_never_changes_is_no_row():
    told = telling(MIXED)
    assert "workload" not in told
    assert told == {
        "language": True,
        "output tokens": False,
        "temperature": False,
        "features": False,
        "priority": False,
    }


def test_a_class_is_enabled_where_drafts_are_at_work():
    found = worth_by_class(MIXED)
    assert {name: is_enabled(each) for name, each in found.items()} == {"chat": True, "art": False}
    few = worth(Groups.of([drafted(num_spec_steps=0)]))
    assert not is_enabled(few), "allowed, but none was made"


def test_the_second_view_follows_from_the_gains_of_enabled_classes():
    assert Packet([], MIXED, []).eligibility == ("pass", "chat gains; without drafts: art")
    slow = [drafted(total_ms=900.0, **of("chat")) for _ in range(4)]
    assert Packet([], [*slow, *MIXED[4:]], []).eligibility[0] == "fail"
    assert Packet([], MIXED[8:], []).eligibility[0] == "not run"


def test_the_third_view_is_net_of_costs_over_classes_with_a_control():
    packet = Packet([], MIXED, [])
    assert packet.total.alone_ms == 400.0, "the class without a control does not count"
    assert packet.value[0] == "pass"
    slow = [drafted(total_ms=900.0, **of("chat")) for _ in range(4)]
    assert Packet([], [*slow, *MIXED[4:8]], []).value[0] == "fail"
    assert Packet([], MIXED[8:], []).value[0] == "not run"
