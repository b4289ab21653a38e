"""Who may call a driver, and whom an agent obeys."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm import agent, handshake
from slurm.mpiexec.agents import MpiAgents, addresses, by_lines
from support.waiting import wait_for

Make = Callable[[int], MpiAgents]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes launches that wait for so many agents; their program writes what it was told."""
    made: list[MpiAgents] = []

    def launch(num_agents: int) -> MpiAgents:
        tell = "import os, sys; open('told', 'w').write(os.environ['MESHTUNE_DRIVER'] + '!')"
        argv = [sys.executable, "-c", f"{tell}; sys.stdin.read()"]
        made.append(MpiAgents(argv, tmp_path, os.environ, num_agents, ["127.0.0.1"]))
        return made[-1]

    yield launch
    for one in made:
        one.let_go(250.0)
        one.finish()


@pytest.fixture
def told(tmp_path: Path) -> Callable[[], str]:
    def driver() -> str:
        path = tmp_path / "told"
        wait_for(lambda: path.exists() and path.read_text().endswith("!"), "it has told")
        return path.read_text()[:-1]

    return driver


def test_an_order_is_sent_when_all_have_called_and_then_nobody_can_call_any_more(
    make: Make, told: Callable[[], str]
) -> None:
    launch = make(2)
    launch.order({"ping": 7})
    ends = [socket.socket(fileno=handshake.call(0, told()))]
    ends[0].setblocking(False)
    with pytest.raises(BlockingIOError):
        ends[0].recv(1)
    ends.append(socket.socket(fileno=handshake.call(1, told())))
    for rank, end in enumerate(ends):
        end.settimeout(250)
        assert end.recv(100) == b'{"ping": 7}\n'
        end.sendall(b"%d hello %d 7\n" % (rank, agent.VERSION))
    wait_for(lambda: launch.channel.greeted == {0, 1}, "both are heard")
    with pytest.raises(OSError, match="refused"):
        handshake.call(1, told())
    for end in ends:
        end.close()


@pytest.mark.parametrize("rank", [0, 5])
def test_a_second_caller_for_a_rank_and_one_too_many_are_not_taken(
    make: Make, told: Callable[[], str], rank: int
) -> None:
    launch = make(2)
    first = socket.socket(fileno=handshake.call(0, told()))
    wait_for(lambda: launch._called, "the first is taken")  # by another thread than the next
    other = socket.socket(fileno=handshake.call(rank, told()))
    other.settimeout(250)
    assert other.recv(1) == b""
    assert set(launch._called) == {0}
    first.close()
    other.close()


def test_a_caller_without_the_secret_learns_and_gets_nothing(
    make: Make, told: Callable[[], str]
) -> None:
    launch = make(1)
    port, secret, _ = told().split()
    with socket.create_connection(("127.0.0.1", int(port)), 250) as caller:
        caller.sendall(bytes(handshake.HELLO_BYTES))
        said = handshake.take(caller, handshake.NONCE_BYTES + handshake.PROOF_BYTES)
        assert bytes.fromhex(secret) not in said
        caller.sendall(said[-handshake.PROOF_BYTES :])  # its own proof, sent back
        assert caller.recv(1) == b""
    with pytest.raises(OSError, match="somebody else answers there"):
        handshake.call(0, f"{port} {'00' * 32} 127.0.0.1")
    assert not launch._called


def test_an_agent_does_not_obey_whoever_listens_where_its_driver_should(
    make: Make, told: Callable[[], str]
) -> None:
    secret = "11" * 32
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pretend() -> None:
            conn, _ = listener.accept()
            with conn:
                handshake.take(conn, handshake.HELLO_BYTES)
                conn.sendall(bytes(handshake.NONCE_BYTES + handshake.PROOF_BYTES))

        thread = threading.Thread(target=pretend)
        thread.start()
        port = listener.getsockname()[1]
        with pytest.raises(OSError, match="somebody else answers there"):
            handshake.call(0, f"{port} {secret} 127.0.0.1")
        thread.join()


def test_a_driver_that_is_nowhere_is_named_with_every_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(OSError, match=rf"127.0.0.1 port {port}: .*; no.such.host: "):
        handshake.call(0, f"{port} {'00' * 32} 127.0.0.1,no.such.host")


def test_hosts_are_given_the_address_on_their_way_and_the_name_once() -> None:
    name = socket.gethostname()
    assert addresses(["127.0.0.1", "no.such.host", "127.0.0.1"]) == ["127.0.0.1", name]


def test_lines_of_several_connections_do_not_get_into_each_other() -> None:
    heard: list[bytes] = []
    one, other = by_lines(heard.append), by_lines(heard.append)
    one(b"0 end 0")
    other(b"1 end 3 0\n1 go")
    one(b" 0\n")
    other(b"ne\n")
    assert b"".join(heard) == b"1 end 3 0\n0 end 0 0\n1 gone\n"
    one(b"x" * 5000)
    assert heard[-1] == b"x" * 5000  # no line of an agent's, which voids the channel
