"""The journal's lines: their keys and order, and what older versions wrote."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from analysis.run.events import (
    Closed,
    Ended,
    Event,
    Opened,
    Proposed,
    Started,
    from_record,
    time_of,
    to_record,
)

ENDED = Ended(
    trial=3, attempt=1, kind="ok", objective=2.5, result={"speed": 2.5}, message="", stderr_tail="",
    elapsed_s=7.0, nodes=("a",), final=True,
)  # fmt: skip
LINES: list[tuple[Event, str]] = [
    (
        Opened(
            space="s", fingerprint="f", seed=1, launcher="local", nodes=("a",),
            objective={"maximize": "speed"},
        ),
        '"opened", "space": "s", "fingerprint": "f", "seed": 1, "launcher": "local", '
        '"nodes": ["a"], "objective": {"maximize": "speed"}}',
    ),
    (
        Opened(
            space="s", fingerprint="f", seed=1, launcher="local", nodes=("a",),
            objective={"maximize": "speed"},
            objectives=[{"maximize": "speed"}, {"minimize": "num_nodes"}],
        ),
        '"opened", "space": "s", "fingerprint": "f", "seed": 1, "launcher": "local", '
        '"nodes": ["a"], "objective": {"maximize": "speed"}, '
        '"objectives": [{"maximize": "speed"}, {"minimize": "num_nodes"}]}',
    ),
    (
        Proposed(trial=3, config={"tp": 2}, by="random", why="policy"),
        '"proposed", "trial": 3, "config": {"tp": 2}, "by": "random", "why": "policy", '
        '"expected": {}}',
    ),
    (
        Started(trial=3, attempt=1, name="r-3", nodes=("a", "b")),
        '"started", "trial": 3, "attempt": 1, "name": "r-3", "nodes": ["a", "b"]}',
    ),
    (
        Started(trial=3, attempt=2, name="r-3", nodes=("a",), repeat=True),
        '"started", "trial": 3, "attempt": 2, "name": "r-3", "nodes": ["a"], "repeat": true}',
    ),
    (
        ENDED,
        '"ended", "trial": 3, "attempt": 1, "kind": "ok", "objective": 2.5, '
        '"result": {"speed": 2.5}, "message": "", "stderr_tail": "", "elapsed_s": 7.0, '
        '"nodes": ["a"], "final": true}',
    ),
    (
        Ended(
            trial=3, attempt=1, kind="ok", objective=2.5, objectives={"speed": 2.5, "num_nodes": 1},
            message="slow", steps=0, final=False, early=True, saved_node_s=0.0,
        ),
        '"ended", "trial": 3, "attempt": 1, "kind": "ok", "objective": 2.5, '
        '"objectives": {"speed": 2.5, "num_nodes": 1}, "result": null, "message": "slow", '
        '"stderr_tail": "", "elapsed_s": 0.0, "steps": 0, "nodes": [], "final": false, '
        '"early": true, "saved_node_s": 0.0}',
    ),
    (Closed(reason="budget: 1 trial"), '"closed", "reason": "budget: 1 trial"}'),
    (Closed(reason="stopped", code=3), '"closed", "reason": "stopped", "code": 3}'),
    (Closed(reason="", limit="trials"), '"closed", "reason": "", "limit": "trials"}'),
]  # fmt: skip


@pytest.mark.parametrize(("event", "line"), LINES)
def test_an_events_line_has_these_keys_in_this_order(event: Event, line: str) -> None:
    assert json.dumps(to_record(event, 1.5)) == '{"v": 2, "t": 1.5, "event": ' + line


@pytest.mark.parametrize("event", [event for event, _ in LINES])
def test_a_line_is_read_as_the_event_that_wrote_it(event: Event) -> None:
    record = json.loads(json.dumps(to_record(event, 1.5)))
    found = from_record(record)
    assert type(found) is type(event)
    assert found is not None and json.loads(json.dumps(to_record(found, 1.5))) == record


@pytest.mark.parametrize(
    ("record", "event"),
    [
        (
            {"event": "proposed", "trial": 1, "config": {"tp": 2}},
            Proposed(trial=1, config={"tp": 2}),
        ),
        (
            {"event": "ended", "trial": 1, "attempt": 1, "kind": "oom", "objective": None,
             "message": "", "final": True},
            Ended(trial=1, attempt=1, kind="oom", objective=None, message="", final=True),
        ),
        (
            {"event": "closed", "reason": "done", "of_a_later_version": 1},
            Closed(reason="done"),
        ),
        ({"event": "of_a_later_version"}, None),
    ],
)  # fmt: skip
def test_what_other_versions_leave_out_or_add_does_not_matter(
    record: dict[str, Any], event: Event | None
) -> None:
    assert from_record(record) == event


def test_a_line_without_what_every_version_writes_is_an_error_that_names_it() -> None:
    with pytest.raises(ValueError, match="event started: it has no nodes"):
        from_record({"event": "started", "trial": 1, "attempt": 1, "name": "r"})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"objective": "text"}, "objective is 'text': input should be a valid number"),
        ({"objective": math.nan}, "objective is nan: input should be a finite number"),
        ({"bounded": {"gib": None}}, "bounded.gib is None: input should be a valid number"),
    ],
)
def test_a_wrong_metric_is_an_error_that_says_what_a_metric_is(
    changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^event ended: {message}$"):
        from_record(to_record(ENDED, 1.5) | changed)


WRONG = ["text", -1, 1.5, True, None, [], [1], {}, {"a": []}, 2**70, math.nan, math.inf]


@pytest.mark.parametrize("event", [event for event, _ in LINES])
def test_a_value_of_a_wrong_type_is_an_error_that_names_its_key(event: Event) -> None:
    right = json.loads(json.dumps(to_record(event, 1.5)))
    refused = set()
    for key in right.keys() - {"v"}:
        for wrong in WRONG:
            record = {**right, key: wrong}
            try:
                time_of(record)
                found = from_record(record)
            except ValueError as error:
                assert key in str(error) and len(str(error)) < 200
                refused.add(key)
            else:  # then it is a value that could have been written
                assert isinstance(found, type(event)) or (key, found) == ("event", None)
    assert refused == right.keys() - {"v"}


def test_what_json_cannot_hold_of_a_result_becomes_null() -> None:
    result = {"loss": [1.0, math.nan], "at": {7: math.inf}}
    event = Ended(trial=1, attempt=1, kind="ok", objective=1.0, result=result, message="",
                  final=True)  # fmt: skip
    assert to_record(event, 0.0)["result"] == {"loss": [1.0, None], "at": {"7": None}}
