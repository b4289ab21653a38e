from __future__ import annotations

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from slurm.pool import MAX_BYPASSES, NodePool
from slurm.trial import Lease

NODES = tuple(f"n{i}" for i in range(1, 9))


def granted(pool: NodePool) -> dict[str, tuple[str, ...]]:
    return {lease.trial: lease.nodes for lease in pool.grants()}


def test_a_twelve_and_a_sixteen_node_trial_share_the_pool() -> None:
    pool = NodePool(f"n{i:03}" for i in range(28))
    pool.request("a", 12)
    pool.request("b", 16)
    leases = pool.grants()
    assert [len(lease.nodes) for lease in leases] == [12, 16]
    assert not pool.free


def test_a_lease_keeps_slurms_order_when_nodes_come_back_in_another() -> None:
    pool = NodePool(NODES)
    for trial in "abcdefgh":
        pool.request(trial, 1)
    leases = pool.grants()
    for lease in reversed(leases):
        pool.release(lease)
    pool.request("wide", 8)
    assert granted(pool) == {"wide": NODES}


def test_a_narrow_trial_takes_the_gap_that_fits_and_leaves_the_wide_one_whole() -> None:
    pool = NodePool(NODES)
    pool.request("a", 4)
    pool.request("b", 1)
    pool.request("c", 2)
    pool.request("d", 1)
    leases = {lease.trial: lease for lease in pool.grants()}
    pool.release(leases["a"])
    pool.release(leases["c"])
    pool.request("e", 2)
    assert granted(pool) == {"e": ("n6", "n7")}


def test_a_trial_spans_gaps_when_no_gap_fits() -> None:
    pool = NodePool(NODES)
    for trial in "abcdefgh":
        pool.request(trial, 1)
    leases = {lease.trial: lease for lease in pool.grants()}
    for trial in "aceg":
        pool.release(leases[trial])
    pool.request("wide", 4)
    assert granted(pool) == {"wide": ("n1", "n3", "n5", "n7")}


def test_the_requests_that_fill_the_free_nodes_are_granted_and_the_earlier_of_equals() -> None:
    pool = NodePool(NODES)
    pool.request("first", 6)
    assert list(granted(pool)) == ["first"]
    for trial, width in (("a", 1), ("wide", 3), ("b", 2), ("c", 2)):
        pool.request(trial, width)
    assert list(granted(pool)) == ["b"]


def test_a_wide_trial_is_overtaken_a_bounded_number_of_times() -> None:
    pool = NodePool(NODES)
    pool.request("holder", 1)
    [held] = pool.grants()
    pool.request("wide", 8)
    overtaken = 0
    for i in range(50):
        pool.request(f"narrow{i}", 1)
        for lease in pool.grants():
            overtaken += 1
            pool.release(lease)
    assert overtaken == MAX_BYPASSES
    pool.release(held)
    assert granted(pool) == {"wide": NODES}


def test_a_removed_node_is_not_leased_again() -> None:
    pool = NodePool(NODES)
    pool.request("a", 2)
    [lease] = pool.grants()
    pool.remove("n2")
    pool.release(lease)
    assert pool.size == 7
    assert "n2" not in pool.free
    pool.request("all", 7)
    assert "n2" not in granted(pool)["all"]


def test_a_request_gets_the_nodes_that_it_avoids_only_for_want_of_others() -> None:
    pool = NodePool(NODES)
    pool.request("a", 2, avoided=["n1", "n4"])
    [lease] = pool.grants()
    assert lease.nodes == ("n2", "n3")
    pool.request("b", 5, avoided=["n1", "n4"])
    assert granted(pool) == {"b": ("n4", "n5", "n6", "n7", "n8")}


def test_a_request_that_a_shrunken_pool_cannot_grant_is_reported_once_and_holds_nobody_up() -> None:
    pool = NodePool(NODES)
    pool.request("holder", 1)
    [held] = pool.grants()
    pool.request("wide", 8)
    for i in range(MAX_BYPASSES):
        pool.request(f"narrow{i}", 1)
        [lease] = pool.grants()
        pool.release(lease)
    pool.request("waiting", 1)
    assert granted(pool) == {}
    pool.remove("n8")
    assert granted(pool) == {"waiting": ("n2",)}
    assert pool.impossible() == ["wide"]
    assert pool.impossible() == []
    pool.release(held)


def test_a_request_wider_than_the_pool_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="9 nodes of 8"):
        NodePool(NODES).request("wide", 9)


def test_a_withdrawn_request_is_never_granted() -> None:
    pool = NodePool(NODES)
    pool.request("a", 1)
    pool.withdraw("a")
    assert granted(pool) == {}


def test_releasing_what_is_not_held_is_an_error() -> None:
    pool = NodePool(NODES)
    with pytest.raises(ValueError, match="does not hold"):
        pool.release(Lease("a", ("n1",)))


def test_a_node_listed_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="listed twice"):
        NodePool(["n1", "n1"])


class PoolMachine(RuleBasedStateMachine):
    """Any order of requests, grants, returns, losses and withdrawals."""

    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.pool = NodePool(NODES)
        self.held: dict[str, Lease] = {}
        self.waiting: dict[str, int] = {}
        self.overtaken: dict[str, int] = {}
        self.count = 0

    @rule(width=st.integers(1, len(NODES)))
    def request(self, width: int) -> None:
        self.count += 1
        trial = str(self.count)
        if width > self.pool.size:
            with pytest.raises(ValueError, match="nodes of"):
                self.pool.request(trial, width)
            return
        self.pool.request(trial, width)
        self.waiting[trial], self.overtaken[trial] = width, 0

    @rule(target=leases, data=st.data())
    def grant(self, data: st.DataObject) -> str:
        for lease in self.pool.grants():
            assert len(lease.nodes) == self.waiting.pop(lease.trial)
            assert list(lease.nodes) == sorted(lease.nodes)
            for trial in self.waiting:
                if int(trial) < int(lease.trial):
                    self.overtaken[trial] += 1
            self.held[lease.trial] = lease
        self._starves_nobody()
        return data.draw(st.sampled_from(sorted(self.held))) if self.held else ""

    @rule(trial=consumes(leases))
    def release(self, trial: str) -> None:
        if trial in self.held:
            self.pool.release(self.held.pop(trial))

    @rule(node=st.sampled_from(NODES))
    def lose(self, node: str) -> None:
        self.pool.remove(node)
        assert node not in self.pool.nodes
        for trial in self.pool.impossible():
            assert self.waiting.pop(trial) > self.pool.size

    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        if self.waiting:
            trial = data.draw(st.sampled_from(sorted(self.waiting)))
            self.pool.withdraw(trial)
            del self.waiting[trial]

    def _starves_nobody(self) -> None:
        for trial in self.waiting:
            assert self.overtaken[trial] <= MAX_BYPASSES

    @invariant()
    def no_node_is_in_two_leases_or_both_free_and_leased(self) -> None:
        leased = [n for lease in self.held.values() for n in lease.nodes]
        assert len(leased) == len(set(leased))
        assert not set(leased) & set(self.pool.free)
        assert set(self.pool.nodes) == set(self.pool.free) | (set(leased) & set(self.pool.nodes))

    def teardown(self) -> None:
        """No deadlock: when everything that is held comes back, all that waits is served."""
        for _ in range(self.count + 1):
            for lease in self.held.values():
                self.pool.release(lease)
            self.held = {lease.trial: lease for lease in self.pool.grants()}
            for trial in self.held:
                del self.waiting[trial]
        assert not self.waiting
        assert self.pool.free == self.pool.nodes


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=30)
