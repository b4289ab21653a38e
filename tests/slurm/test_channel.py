"""The driver's end of the agents' connection: no line of it is ever an error of the driver's."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from slurm.channel import Channel
from slurm.outcome.watch import Termination
from slurm.trial import Lease, TrialSpec

LEASE = Lease("1", ("n0", "n1"))
HELLOS = b"0 hello 1 11\n1 hello 1 12\n"


@pytest.fixture
def spec(tmp_path: Path) -> TrialSpec:
    return TrialSpec("t", tmp_path, ("x",), 2, 1, 600.0)


@pytest.fixture
def channel(spec: TrialSpec) -> Channel:
    made = Channel([0, 1], 2, lambda order: None)
    made.feed(HELLOS)
    made.begin(spec, LEASE)
    return made


def test_a_trial_is_over_when_all_agents_say_so(channel: Channel) -> None:
    channel.feed(b"0 beat 0\n0 end 0 0\n0 gone\n1 end")
    assert (channel.all_gone, channel.exit_code) == (False, None)
    channel.feed(b" 3 0\n1 gone\n")
    assert (channel.all_gone, channel.exit_code, channel.codes) == (True, 3, {0: 0, 1: 3})


@pytest.mark.parametrize(
    "line",
    [
        b"", b"0", b"0 ", b"end 0 0", b"2 end 0 0", b"-1 end 0 0", b"0 end 0", b"0 end 0 0 0",
        b"0 end 1e999 0", b"0 end 256 0", b"0 end -65 0", b"0 end 0 -1", b"0 end  0 0",
        b" 0 end 0 0", b"0 end 0 0 ", b"0 end 99999999999 0", b"0 END 0 0", b"0 nothing", b"0 gone",
        b"0 hello 1 11", b"0 hello 2 11", b"0 sig 65 0", b"[" * 900, b"0 out" + b"x" * 2000,
        b"\xff\xfe", b"0 end \xd9\xa3 0",
        b'MESHTUNE_RANK {"trial": "t", "rank": 0, "code":1e999}',
    ],
)  # fmt: skip
def test_what_is_no_word_voids_the_channel_and_all_that_follows(
    channel: Channel, line: bytes
) -> None:
    channel.feed(b"0 beat 0\n" + line + b"\n0 end 0 0\n0 gone\n1 end 0 0\n1 gone\n")
    assert "a line that is no message" in channel.void
    assert (channel.all_gone, channel.exit_code, channel.codes) == (False, None, {})


def test_what_a_site_prints_before_an_agent_has_started_goes_to_the_log(spec: TrialSpec) -> None:
    channel = Channel([0, 1], 2, lambda order: None)
    channel.begin(spec, LEASE)
    channel.feed(b"== Welcome to n0 ==\n0 hello 1 11\n\n== Welcome to n1 ==\n1 hello 1 12\n")
    channel.feed(b"0 end 0 0\n0 gone\n1 end 0 0\n1 gone\n")
    assert (channel.void, channel.all_gone, channel.exit_code) == ("", True, 0)
    channel.finish()
    log = (spec.directory / "stderr.log").read_text()
    assert log == "== Welcome to n0 ==\n\n== Welcome to n1 ==\n"


def test_an_end_is_told_once(channel: Channel) -> None:
    channel.feed(b"0 end 0 0\n0 end 0 0\n")
    assert channel.void


def test_noise_of_any_kind_is_never_an_error(spec: TrialSpec) -> None:
    draw = random.Random(29)
    words = [
        b"0 ",
        b"1 ",
        b"end ",
        b"gone",
        b"\n",
        b"out ",
        b"-1 ",
        b"9" * 30,
        b"\\",
        b"\x00",
        b"beat 0",
    ]
    for _ in range(300):
        channel = Channel([0, 1], 2, lambda order: None)
        channel.begin(spec, LEASE)
        for _ in range(20):
            channel.feed(b"".join(draw.choices(words, k=draw.randrange(9))))
        channel.finish()


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (b"1 end -15 0\n", "rank 1 on n1 was sent signal 15 from outside"),
        (b"1 sig 15 0\n1 end 5 0\n", "rank 1 on n1 was sent signal 15 from outside from user 0"),
        (b"1 end -9 0\n", "rank 1 on n1 was sent signal 9 from outside"),
        (b"1 end -9 1\n", ""),  # the kernel, for want of memory
        (b"1 end -11 0\n", ""),
        (b"1 end 137 0\n", "rank 1 on n1 was sent signal 9 from outside"),  # as a shell says it
        (b"1 end 137 1\n", ""),
        (b"1 end 139 0\n", ""),
        (b"1 end 143 0\n", ""),  # a program's own, unless its agent was sent the signal
        (b"1 sig 10 0\n1 end 3 0\n", ""),  # it took SIGUSR1, and failed later
        (b"0 end 3 0\n1 sig 15 0\n1 end -15 0\n", ""),  # the first is to blame
        (b"0 end 0 0\n1 sig 15 0\n1 end 0 0\n", ""),
    ],
)
def test_the_first_rank_that_failed_decides_whether_others_ended_it(
    channel: Channel, spec: TrialSpec, said: bytes, message: str
) -> None:
    channel.feed(said)
    assert channel.disturbed(Termination.EXITED, True) == message


def test_lines_of_ranks_are_whole_in_the_log(channel: Channel, spec: TrialSpec) -> None:
    channel.feed(b"0 out one\n1 out other\\nline\n0 out  and\\n\n1 out s\\\\n\n0 end 0 0\n0 gone\n")
    channel.finish()
    assert (spec.directory / "stdout.log").read_bytes() == b"other\none and\nlines\\n\n"
