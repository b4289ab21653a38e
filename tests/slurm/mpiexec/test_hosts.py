"""Host files, PBS and LSF, read with errors that name the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm.mpiexec.hosts import Host, HostsError, find_hosts


def listed(tmp_path: Path, text: str) -> tuple[Host, ...]:
    path = tmp_path / "hosts"
    path.write_text(text)
    return find_hosts(path, {})


def test_a_host_file_may_say_slots_in_either_way_or_not_at_all(tmp_path: Path) -> None:
    text = (
        "# my nodes\nnode2 slots=4\n\nnode10:8  # the fat one\na.b-c.org\nn4 slots=2 max_slots=4\n"
    )
    assert listed(tmp_path, text) == (
        Host("node2", 4),
        Host("node10", 8),
        Host("a.b-c.org"),
        Host("n4", 2),
    )


def test_a_host_that_is_listed_again_stays_where_it_was_and_its_slots_add_up(
    tmp_path: Path,
) -> None:
    assert listed(tmp_path, "n2 slots=2\nn1\nn2 slots=2\nn1\n") == (Host("n2", 4), Host("n1"))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("n1 slots=four", r"line 2: 'slots=four': slots are a number from 1 to 100,000"),
        ("n1:0", r"line 2: 'n1:0': slots are a number"),
        ("n1 4", r"line 2: '4' is not understood; after a host's name may stand slots=4"),
        ("-n1", r"line 2: '-n1' is no host name"),
        ("user@n1", r"line 2: 'user@n1' is no host name"),
        ("n1:" + "9" * 5000, r"line 2: 'n1:99.*99': slots are a number from 1 to 100,000"),
        ("n" * 5000, r"line 2: 'nnn.*nnn' is no host name"),
        ("n1\x1b[31m", r"line 2: 'n1\\x1b\[31m' is no host name"),
        ("n1,n2", r"line 2: 'n1,n2' is no host name; write it like node7 slots=4"),
    ],
)
def test_a_line_that_is_not_understood_is_named_with_what_it_may_be(
    tmp_path: Path, line: str, says: str
) -> None:
    with pytest.raises(HostsError, match=says) as error:
        listed(tmp_path, f"n0\n{line}\n")
    assert str(tmp_path / "hosts") in str(error.value)
    assert len(str(error.value)) < 500


def test_a_file_without_hosts_or_none_at_all_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(HostsError, match="has no hosts"):
        listed(tmp_path, "# nothing\n")
    with pytest.raises(HostsError, match=r"absent: there is no such file"):
        find_hosts(tmp_path / "absent", {})


def test_pbs_lists_a_host_once_for_each_of_its_cores_which_limits_no_trial(tmp_path: Path) -> None:
    path = tmp_path / "nodes"
    path.write_text("r1i0n2\nr1i0n2\nr1i0n1\nr1i0n1\n")
    hosts = find_hosts(None, {"PBS_NODEFILE": str(path)})
    assert hosts == (Host("r1i0n2"), Host("r1i0n1"))


def test_a_host_file_wins_over_the_jobs(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    path.write_text("n3\n")
    assert find_hosts(path, {"LSB_MCPU_HOSTS": "n1 4 n2 4"}) == (Host("n3"),)


def test_lsf_lists_its_hosts_in_a_file_or_with_their_counts(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("n7\nn7\nn5\n")
    environ = {"LSB_MCPU_HOSTS": "n1 4 n2 4"}
    assert find_hosts(None, environ) == (Host("n1"), Host("n2"))
    environ["LSB_DJOB_HOSTFILE"] = str(path)
    assert find_hosts(None, environ) == (Host("n7"), Host("n5"))


def test_an_error_in_a_schedulers_list_names_its_variable(tmp_path: Path) -> None:
    with pytest.raises(HostsError, match=r"LSB_MCPU_HOSTS is 'n1 n2'"):
        find_hosts(None, {"LSB_MCPU_HOSTS": "n1 n2"})
    with pytest.raises(HostsError, match=r"^PBS_NODEFILE: .*no such file"):
        find_hosts(None, {"PBS_NODEFILE": str(tmp_path / "absent")})


def test_without_any_list_the_remedy_is_named() -> None:
    with pytest.raises(HostsError, match="give --hostfile FILE"):
        find_hosts(None, {})
