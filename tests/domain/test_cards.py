"""L-D14: which cards of a Node a workload gets."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from tuneplane.domain import cards
from tuneplane.domain.cards import choose_cards
from tuneplane.domain.ids import FleetId, NodeId
from tuneplane.domain.inventory import MOST_CARDS, CardLink, Gpu, Inventory
from tuneplane.domain.nodes import Connection, Node, NodeState

from .strategies import EPOCH

PAIRS = ((0, 2), (1, 3), (4, 6), (5, 7))  # NVLink bridges; 0-3 are on one socket, 4-7 on the other
HALF, OTHER = 30, 50


def a_node(links: dict[tuple[int, int], CardLink], count: int, free: tuple[int, ...] | None = None) -> Node:
    """Cards ``G0`` … with ``links`` told by the lower index; ``free`` ones, default all."""
    gpus = tuple(
        Gpu(index=at, uuid=f"G{at}", name="A40", memory_bytes=1, links=tuple(link for (one, _), link in links.items() if one == at))
        for at in range(count)
    )
    return Node(
        id=NodeId("n1"),
        fleet=FleetId("lab"),
        address="10.0.0.1",
        state=NodeState.ACTIVE,
        connection=Connection(state="connected"),
        inventory=Inventory(hostname="h", node_version="1", cpu_count=1, memory_bytes=1, gpus=gpus),
        free_gpu_uuids=tuple(f"G{at}" for at in (range(count) if free is None else free)),
        created_at=EPOCH,
    )


def bridged(count: int = 8, pairs: tuple[tuple[int, int], ...] = PAIRS, half: int = 4) -> dict[tuple[int, int], CardLink]:
    return {
        (one, other): CardLink(
            peer=f"G{other}", nvlinks=4 if (one, other) in pairs else 0, distance=HALF if one // half == other // half else OTHER
        )
        for other in range(count)
        for one in range(other)
    }


def chosen(node: Node, count: int) -> list[int]:
    found = choose_cards(node, count)
    assert found is not None
    return [int(uuid[1:]) for uuid in found]


def test_cards_two_are_a_linked_pair_and_four_two_pairs_that_are_near() -> None:
    """L-D14: the lesson's machine. By index it would be 0 and 1, which NVLink does not join."""
    node = a_node(bridged(), 8)
    assert chosen(node, 2) == [0, 2]
    assert chosen(node, 4) == [0, 1, 2, 3]
    assert chosen(a_node(bridged(), 8, (1, 2, 3, 4, 5, 6, 7)), 4) == [4, 5, 6, 7]


def test_cards_one_is_taken_where_it_breaks_no_pair() -> None:
    """L-D14: linked sets are left whole for others."""
    assert chosen(a_node(bridged(), 8, (0, 2, 3, 4, 6)), 1) == [3]
    assert chosen(a_node(bridged(), 8, (0, 2, 3, 4, 6)), 3) in ([0, 2, 3],)
    assert chosen(a_node(bridged(), 8, (0, 1, 2, 5, 6)), 2) == [0, 2]
    assert chosen(a_node(bridged(), 8, (0, 1, 4, 5)), 2) == [0, 1]  # no pair is left whole: two on one socket


def test_cards_that_are_all_as_near_or_of_which_nothing_is_known_are_the_first_ones() -> None:
    """A machine with NVLink switches, an older Node, and a card that the inventory does not name."""
    switched = {key: CardLink(peer=link.peer, nvlinks=18) for key, link in bridged().items()}
    assert chosen(a_node(switched, 8, (1, 3, 4, 6)), 2) == [1, 3]
    assert chosen(a_node({}, 8), 3) == [0, 1, 2]
    assert choose_cards(a_node(bridged(), 4, (0, 1, 9)), 2) == ("G0", "G1")


def test_cards_of_a_machine_with_sixteen_are_found_within_the_bound() -> None:
    """Eight bridged pairs on two sockets: the best set is found, and what is given up after is never fewer cards than asked."""
    pairs = tuple((at, at + 2) for at in (0, 1, 4, 5, 8, 9, 12, 13))
    node = a_node(bridged(16, pairs, 8), 16)
    assert chosen(node, 8) == list(range(8))
    for count in range(17):
        search = cards._Search(cards._costs(node), max(count, 1))
        search.run()
        assert search.steps < cards.MOST_STEPS, count
        assert len(set(chosen(node, count))) == count


LINKS = st.builds(CardLink, peer=st.just(""), nvlinks=st.sampled_from([0, 0, 1, 2, 12]), distance=st.sampled_from([0, 10, 20, 30, 40, 50]))


@st.composite
def machines(draw: st.DrawFn) -> Node:
    count = draw(st.integers(0, 7))
    pairs = [(one, other) for other in range(count) for one in range(other)]
    told = {pair: draw(LINKS) for pair in pairs if draw(st.booleans())}
    links = {(one, other): CardLink(peer=f"G{other}", nvlinks=link.nvlinks, distance=link.distance) for (one, other), link in told.items()}
    free = draw(st.lists(st.integers(0, count - 1), unique=True).map(sorted)) if count else []
    return a_node(links, count, tuple(free))


@given(machines(), st.integers(0, 8))
def test_cards_are_as_many_as_asked_free_in_order_and_the_same_again(node: Node, count: int) -> None:
    """Never worse than count: None only when too few are free."""
    found = choose_cards(node, count)
    assert (found is None) == (count > len(node.free_gpu_uuids))
    if found is not None:
        assert len(found) == len(set(found)) == count
        assert list(found) == [uuid for uuid in node.free_gpu_uuids if uuid in found]
        assert choose_cards(node, count) == found


@given(machines(), st.integers(1, 7))
def test_cards_of_a_small_machine_are_the_nearest_of_all_sets(node: Node, count: int) -> None:
    """The search gives nothing away: no set costs less, and no equal one leaves more that is linked."""
    found = choose_cards(node, count)
    if found is None:
        return
    costs = cards._costs(node)
    places = range(len(costs))

    def score(chosen: tuple[int, ...]) -> tuple[int, int]:
        kept = [at for at in places if at not in chosen]
        within = sum(costs[one][other] for one in chosen for other in chosen)
        return within, sum(cards.FAR - costs[one][other] for one in chosen for other in kept)

    best = min(score(chosen) for chosen in combinations(places, count))
    assert score(tuple(node.free_gpu_uuids.index(uuid) for uuid in found)) == best


def test_cards_of_a_machine_larger_than_there_is_are_given_as_they_come() -> None:
    """Its topology is a claim that costs the whole control plane seconds; the largest real one is still searched."""
    far = MOST_CARDS - 1
    links = {(0, far): CardLink(peer=f"G{far}", nvlinks=4), (0, 1): CardLink(peer="G1", distance=OTHER)}
    assert chosen(a_node(links, MOST_CARDS), 2) == [0, far]
    assert chosen(a_node(links, MOST_CARDS + 1), 2) == [0, 1]
