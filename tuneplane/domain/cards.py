"""Which cards of one Node a workload gets: pure, and the same answer for the same Node (L-D14).

The set whose cards are nearest to one another wins; among equals the one whose cards are the least near to all the others
that are free, so that linked sets are left whole for whoever comes next. The search for the best set of half of a large
machine could take long: it ends after a number of steps with the best set that it has seen.
"""

from __future__ import annotations

from attrs import define, field

from .inventory import FARTHEST, MOST_CARDS, CardLink
from .nodes import Node

MOST_STEPS = 1000  # of the search, some 10 ms: the boards that are sold, of up to 16 cards, need fewer
NVLINK_COST = 9  # less one for each NVLink between two cards: any NVLink is nearer than PCIe
PCIE_COST = 10  # and NVML's distance on top
FAR = PCIE_COST + FARTHEST


def choose_cards(node: Node, count: int) -> tuple[str, ...] | None:
    """The UUIDs of ``count`` free cards of ``node``, in the order of the Node's; None when it has not that many."""
    free = node.free_gpu_uuids
    if count > len(free):
        return None
    if count in (0, len(free)) or node.inventory is None or not any(gpu.links for gpu in node.inventory.gpus):
        return free[:count]
    if len(free) > MOST_CARDS:
        return free[:count]  # no machine that there is: the search grows with the fourth power of what a Node may claim
    costs = _costs(node)
    if len({cost for at, row in enumerate(costs) for cost in row[:at]}) < 2:
        return free[:count]  # all are as near to one another
    search = _Search(costs, count)
    search.run()
    return tuple(free[at] for at in search.best)


def _costs(node: Node) -> list[list[int]]:
    """How far the free cards are from one another; what is not known is far."""
    gpus = node.inventory.gpus if node.inventory is not None else ()
    told = {(gpu.uuid, link.peer): _cost(link) for gpu in gpus for link in gpu.links}
    free = node.free_gpu_uuids
    return [[min(told.get((one, other), FAR), told.get((other, one), FAR)) if one != other else 0 for other in free] for one in free]


def _cost(link: CardLink) -> int:
    return max(NVLINK_COST - link.nvlinks, 1) if link.nvlinks > 0 else PCIE_COST + min(max(link.distance, 0), FARTHEST)


@define(eq=False)
class _Search:
    """Depth first over sets in the order of their first cards, without those that can no longer win. ``run`` sets ``best``."""

    costs: list[list[int]]
    count: int
    best: tuple[int, ...] = ()
    steps: int = 0
    _score: tuple[int, int] = (2**63, 0)  # twice the cost within the set; how near its cards are to all
    _nearness: list[int] = field(init=False)  # of each card to all the others
    _least: list[list[int]] = field(init=False)  # [card][n]: what its n nearest cards cost
    _alikes: list[int] = field(init=False)  # the last card before it that is to all others as it is; -1: none

    def __attrs_post_init__(self) -> None:
        cards = range(len(self.costs))
        others = [[cost for other, cost in enumerate(self.costs[card]) if other != card] for card in cards]
        self._nearness = [sum(FAR - cost for cost in row) for row in others]
        self._least = [_sums(sorted(row)) for row in others]
        self._alikes = [max((one for one in range(card) if self._alike(one, card)), default=-1) for card in cards]

    def run(self) -> None:
        for first in range(len(self.costs)):
            self._take(self._greedy(first))
        self._grow((), [0] * len(self.costs), 0, 0, 0)

    def _alike(self, one: int, card: int) -> bool:
        return all(
            cost == other for at, (cost, other) in enumerate(zip(self.costs[one], self.costs[card], strict=True)) if at not in (one, card)
        )

    def _greedy(self, first: int) -> tuple[int, ...]:
        """Always the nearest next card: a bound that is good from the start."""
        chosen = [first]
        while len(chosen) < self.count:
            rest = [card for card in range(len(self.costs)) if card not in chosen]
            chosen.append(min(rest, key=lambda card: (sum(self.costs[card][one] for one in chosen), self._nearness[card], card)))
        return tuple(sorted(chosen))

    def _take(self, cards: tuple[int, ...]) -> None:
        within = sum(self.costs[one][other] for one in cards for other in cards)
        score = (within, sum(self._nearness[card] for card in cards))
        if score < self._score:
            self._score, self.best = score, cards

    def _grow(self, chosen: tuple[int, ...], towards: list[int], first: int, within: int, near: int) -> None:
        """``towards``: of each card to the chosen ones; ``first``: of the cards that may still come."""
        if len(chosen) == self.count:
            self._take(chosen)
            return
        missing = self.count - len(chosen)
        for card in range(first, len(self.costs) - missing + 1):
            if self.steps >= MOST_STEPS or not self._may_win(towards, card, missing, within, near):
                return
            if self._alikes[card] >= 0 and self._alikes[card] not in chosen:
                continue  # the same set but for a name, and that one was looked at
            self.steps += 1
            further = [cost + self.costs[card][at] for at, cost in enumerate(towards)]
            self._grow((*chosen, card), further, card + 1, within + 2 * towards[card], near + self._nearness[card])

    def _may_win(self, towards: list[int], first: int, missing: int, within: int, near: int) -> bool:
        """Whether any set of the chosen cards and ``missing`` ones from ``first`` on could be better than the best."""
        may = range(first, len(self.costs))
        least = sum(sorted(2 * towards[card] + self._least[card][missing - 1] for card in may)[:missing])
        nearest = sum(sorted(self._nearness[card] for card in may)[:missing])
        return (within + least, near + nearest) < self._score


def _sums(costs: list[int]) -> list[int]:
    sums = [0]
    for cost in costs:
        sums.append(sums[-1] + cost)
    return sums
