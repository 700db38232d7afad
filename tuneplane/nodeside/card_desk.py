"""The Node's judgement of its cards: which are granted, which are put aside, and what it remembers of them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from attrs import define, evolve, field, frozen

from tuneplane.domain.card_grants import Sight, bind_cards, change_id
from tuneplane.domain.card_health import Examination, examine
from tuneplane.domain.errors import InvalidInput
from tuneplane.domain.inventory import Budgets, CardBinding, CardFault
from tuneplane.domain.node_ports import Cards, Machine, Runner

from .card_memory import CardMemory, load_memory, save_memory

log = logging.getLogger(__name__)

CardReader = Callable[[], Awaitable[Cards]]


@frozen(kw_only=True)
class CardSight:
    """One look at the cards. ``granted`` are those that a Prepare may name; ``faults`` None: they cannot be told."""

    cards: Cards
    granted: frozenset[str] = frozenset()
    bindings: tuple[CardBinding, ...] = ()
    faults: tuple[CardFault, ...] | None = None
    problems: tuple[str, ...] = ()


async def look_once(read_cards: CardReader, budgets: Budgets) -> CardSight:
    """Of a machine that joins: it remembers nothing yet, and nothing is kept."""
    cards = await read_cards()
    return CardSight(cards=cards, granted=bind_cards(Sight(budgets, cards.gpus), {}).granted, problems=_driver_problem(cards, budgets))


@define(eq=False)
class CardDesk:
    """Owned by the inventory's actor. A driver that does not answer leaves grants, bindings and faults as they are (L-D4)."""

    read_cards: CardReader
    budgets: Budgets
    state_dir: Path
    machine: Machine
    disk: Runner
    _memory: CardMemory | None = field(default=None, init=False)  # as it is on the disk
    _granted: frozenset[str] = field(default=frozenset(), init=False)

    async def look(self, accepted: str = "") -> CardSight:
        """``accepted``: the change of cards that an operator has accepted, as the newest Welcome says. Raises nothing."""
        cards = await self.read_cards()
        problems = _driver_problem(cards, self.budgets)
        try:
            memory = self._memory if self._memory is not None else await self.disk(lambda: load_memory(self.state_dir))
        except (OSError, InvalidInput) as error:
            return CardSight(cards=cards, problems=(*problems, f"what the cards of this machine were cannot be read: {error}"))
        known = not cards.problem
        wanted = self._learn(memory, cards, accepted, known=known)
        try:
            if wanted != memory:
                await self.disk(lambda: save_memory(self.state_dir, wanted))
        except OSError as error:
            self._memory = None  # the disk has the old one or the new one: the next look reads which
            return CardSight(cards=cards, problems=(*problems, f"what the cards of this machine are cannot be kept: {error}"))
        self._memory = wanted
        if known:
            self._granted = bind_cards(Sight(self.budgets, cards.gpus), _by_index(wanted)).granted
        faults = tuple(one.fault for one in wanted.faults)
        return CardSight(cards=cards, granted=self._granted, bindings=wanted.bindings, faults=faults, problems=problems)

    def _learn(self, memory: CardMemory, cards: Cards, accepted: str, *, known: bool) -> CardMemory:
        sight = Sight(self.budgets, cards.gpus)
        if known and accepted and accepted == change_id(sight):
            memory = evolve(memory, bindings=_accept(memory, sight))
        if known:
            new = bind_cards(sight, _by_index(memory)).new
            memory = evolve(memory, bindings=tuple(sorted((*memory.bindings, *new), key=lambda one: one.index)))
            memory = evolve(memory, buses={**memory.buses, **{gpu.bus: gpu.uuid for gpu in cards.gpus if gpu.bus}})
        return self._examine(memory, cards)

    def _examine(self, memory: CardMemory, cards: Cards) -> CardMemory:
        boot = self.machine.boot_id()
        looked = memory.kernel_sequence if memory.kernel_boot == boot else -1
        seen = Examination(
            gpus=cards.gpus,
            health={one.uuid: one for one in cards.health},
            lines=tuple(line for line in cards.messages if line.sequence > looked),
            buses=memory.buses,
            boot=boot,
            now=self.machine.now(),
        )
        faults = examine(memory.faults, seen)
        if faults == memory.faults:
            return memory
        for fault in {one.fault for one in faults} - {one.fault for one in memory.faults}:
            log.error("card %s is put aside: %s: %s", fault.card or "(unknown)", fault.code, fault.detail)
        last = max((line.sequence for line in cards.messages), default=looked)
        return evolve(memory, faults=faults, kernel_boot=boot, kernel_sequence=max(last, looked))


def _accept(memory: CardMemory, sight: Sight) -> tuple[CardBinding, ...]:
    """The indexes that are seen mean what is at them now; others that meant one of these cards mean none any more."""
    now = {index: gpu.uuid for index, gpu in sight.by_index().items()}
    if all(_by_index(memory).get(index) == uuid for index, uuid in now.items()):
        return memory.bindings
    log.warning("an operator has accepted the cards of this machine as they are now: %s", now)
    kept = {index: uuid for index, uuid in _by_index(memory).items() if index not in now and uuid not in now.values()}
    return tuple(CardBinding(index=index, uuid=uuid) for index, uuid in sorted({**kept, **now}.items()))


def _by_index(memory: CardMemory) -> dict[int, str]:
    return {one.index: one.uuid for one in memory.bindings}


def _driver_problem(cards: Cards, budgets: Budgets) -> tuple[str, ...]:
    wanted = bool(budgets.gpu_indexes or budgets.gpu_uuids)
    return (cards.problem,) if cards.problem and wanted else ()
