"""Writers and recovering clients against each other, under loss, delay and death."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger_client.core.commands import AskLac, AskRecoveryRead, LacAnswer
from ledger_client.core.recovery import Recovery, RecoveryOptions
from metadata.model import LedgerState
from tests.ledger_client.core.world import RecoveringClient, World, WriterClient

SHAPES = [(3, 3, 2), (3, 2, 2), (4, 3, 2), (5, 3, 2), (2, 2, 1), (4, 4, 3), (6, 3, 3)]


@settings(max_examples=300)
@given(
    shape=st.sampled_from(SHAPES),
    seed=st.integers(0, 2**32),
    loss=st.sampled_from([0.0, 0.05, 0.2]),
    window=st.sampled_from([1, 2, 16]),
    ask_all=st.booleans(),
)
def test_recovery_keeps_every_confirmed_entry_and_every_lac_shown(
    shape: tuple[int, int, int], seed: int, loss: float, window: int, ask_all: bool
) -> None:
    """A writer and several recovering clients race; some of these die half way.

    Then the network heals and one more client must bring recovery to its end.
    """
    world = World(seed, shape)
    world.loss = loss
    options = RecoveryOptions(window=window, ask_all=ask_all)
    writer = WriterClient(world)
    clients: list[RecoveringClient] = []
    recover_after = world.chance.randrange(12)
    for turn in range(20):
        writer.append(world.chance.choice((1, 1, 2, 3)))
        world.run(world.chance.randrange(12))
        if turn >= recover_after and world.chance.random() < 0.25 and len(clients) < 3:
            clients.append(RecoveringClient(world, options))
        if clients and world.chance.random() < 0.1:
            clients[-1].is_dead = True
    for client in clients:
        client.is_dead = client.is_dead or world.chance.random() < 0.5
    world.loss = 0.0
    last = RecoveringClient(world, options)
    world.run(100_000)
    assert not world.network
    assert not last.failed, "I24: with every bookie there, recovery ends"
    assert world.metadata.state is LedgerState.CLOSED
    world.check(writer)


@pytest.mark.parametrize("shape", SHAPES)
def test_recovery_finds_everything_that_a_finished_writer_confirmed(
    shape: tuple[int, int, int],
) -> None:
    world = World(1, shape)
    writer = WriterClient(world)
    for _ in range(10):
        writer.append(5)
        world.run(100_000)
    assert writer.confirmed == 49
    RecoveringClient(world)
    world.run(100_000)
    assert world.metadata.last_entry_id == 49
    world.check(writer)


def test_recovery_of_fifty_entries_takes_few_messages() -> None:
    """One round of fencing, then one window; the writer is gone without a last LAC."""
    world = World(1, (3, 3, 2))
    writer = WriterClient(world)
    writer.append(50)
    world.run(100_000)
    client = RecoveringClient(world)
    rounds = 0
    while world.network:
        rounds += 1
        world.run(len(world.network))
    assert world.metadata.last_entry_id == 49
    assert client.world.metadata.length == sum(e % 7 + 1 for e in range(50))
    # Claim, then there and back each: fence, read, add; close.
    assert rounds <= 10


def rounds_to_recover(entries: int, options: RecoveryOptions) -> int:
    world = World(1, (3, 3, 2))
    WriterClient(world).append(entries)
    world.run(100_000)
    RecoveringClient(world, options)
    rounds = 0
    while world.network:
        rounds += 1
        world.run(len(world.network))
    assert world.metadata.last_entry_id == entries - 1
    return rounds


def test_long_tail_is_recovered_in_windows_that_grow_with_it() -> None:
    """A writer killed within one large batch: nothing of it was told to be confirmed."""
    narrow = rounds_to_recover(2000, RecoveryOptions(window=16, window_max=16))
    wide = rounds_to_recover(2000, RecoveryOptions(window=16))
    assert wide < narrow / 8


def test_window_does_not_grow_beyond_its_bytes() -> None:
    """Entries here have four bytes on the average: sixty-four bytes are sixteen of them."""
    narrow = rounds_to_recover(500, RecoveryOptions(window=16, window_max=16))
    bounded = rounds_to_recover(500, RecoveryOptions(window_bytes_max=64))
    assert bounded >= narrow - 4


@pytest.mark.parametrize(("size", "entries"), [(0, 64), (64 << 10, 64), (1 << 20, 4), (5 << 20, 1)])
def test_first_window_goes_by_the_entries_that_came_with_the_lac(size: int, entries: int) -> None:
    """Sixty-four entries of 5 MiB from three bookies are not asked for at once."""
    metadata = World(1, (3, 3, 2)).metadata
    core = Recovery(metadata)
    core.start()
    asks = core.on_started(replace(metadata, state=LedgerState.IN_RECOVERY), wrote=True)
    assert all(isinstance(ask, AskLac) for ask in asks)
    answers = [LacAnswer(ask.request_id, size=size) for ask in asks if isinstance(ask, AskLac)]
    reads = core.on_lac_answers(answers, 0.0)
    assert len({ask.entry_id for ask in reads if isinstance(ask, AskRecoveryRead)}) == entries
