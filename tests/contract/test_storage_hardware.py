"""The hardware registry (HardwareStore): R-ENR-06."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from attrs import evolve

from tests.contract.storage_world import FLEET, USER, OpenWorld, World, a_spec, an_inventory
from tuneplane.domain.errors import NotFound, Refused
from tuneplane.domain.hardware import MOST_CARD_NAMES, Registry, Series
from tuneplane.domain.ids import JobId, NodeId, SeriesId, member_id
from tuneplane.domain.jobs import Page
from tuneplane.domain.jobspec import JobSpec, Pool, Resources
from tuneplane.domain.launch_table import AttemptEvent, MemberPhase
from tuneplane.domain.nodes import NodeState
from tuneplane.domain.ports import Topic

H100, A100 = SeriesId("h100"), SeriesId("a100")


async def add(world: World, series: str, *names: str) -> tuple[Series, bool]:
    return await world.storage.add_series(Series(series=SeriesId(series), card_names=names), world.now)


def pinned(series: str) -> JobSpec:
    return a_spec(resources=Resources(pools=(Pool(gpus_per_node=1, cpus=1, memory_gb=1, series=series),)))


async def refused(call: Callable[[], Awaitable[object]]) -> Refused:
    with pytest.raises(Refused) as caught:
        await call()
    return caught.value


async def test_new_registry_is_empty_and_keeps_names_in_the_order_of_their_coming(open_world: OpenWorld) -> None:
    async with open_world() as world:
        assert await world.storage.hardware() == Registry()
        assert await add(world, "h100", "NVIDIA H100 80GB HBM3") == (Series(series=H100, card_names=("NVIDIA H100 80GB HBM3",)), True)
        await add(world, "a100", "A100-SXM4-40GB")
        grown = Series(series=H100, card_names=("NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "H100 NVL"))
        assert await add(world, "h100", "NVIDIA H100 PCIe", "H100 80GB HBM3", "H100 NVL") == (grown, False)  # one of them was known
        registry = await world.storage.hardware()
        assert registry.series == (Series(series=A100, card_names=("A100-SXM4-40GB",)), grown)


async def test_one_card_belongs_to_one_series_however_it_is_spelled(open_world: OpenWorld) -> None:
    """Nothing of a refused call stays, a new series included."""
    async with open_world() as world:
        await add(world, "h100", "NVIDIA H100 PCIe")
        error = await refused(lambda: add(world, "hopper", "NVIDIA H200", "h100  pcie"))
        assert (error.code, [one.subject for one in error.reasons]) == ("card-taken", ["h100"])
        assert [one.series for one in (await world.storage.hardware()).series] == ["h100"]


async def test_a_series_has_a_limit_of_names(open_world: OpenWorld) -> None:
    async with open_world() as world:
        await add(world, "h100", *(f"card {number}" for number in range(MOST_CARD_NAMES)))
        assert (await refused(lambda: add(world, "h100", "one more"))).code == "too-many-card-names"
        assert len((await world.storage.hardware()).series[0].card_names) == MOST_CARD_NAMES


async def test_remove_takes_a_series_or_one_name_of_it(open_world: OpenWorld) -> None:
    async with open_world() as world:
        await add(world, "h100", "NVIDIA H100 PCIe", "NVIDIA H100 NVL")
        await world.storage.remove_series(H100, "h100 pcie")
        assert (await world.storage.hardware()).series == (Series(series=H100, card_names=("NVIDIA H100 NVL",)),)
        with pytest.raises(NotFound):
            await world.storage.remove_series(H100, "h100 pcie")
        assert (await refused(lambda: world.storage.remove_series(H100, "H100 NVL"))).code == "last-card-name"
        await world.storage.remove_series(H100)
        assert await world.storage.hardware() == Registry()
        with pytest.raises(NotFound):
            await world.storage.remove_series(H100)
        await add(world, "hopper", "NVIDIA H100 PCIe")  # its names are free again


async def test_every_look_at_a_node_knows_the_series_of_its_cards(open_world: OpenWorld) -> None:
    """R-ENR-06: as soon as the registry does; unknown cards have none."""
    async with open_world() as world:
        opened = await world.node(cards=("GPU-1", "GPU-2"))
        seen = an_inventory(("GPU-1", "GPU-2"))
        other = evolve(seen.gpus[1], name="NVIDIA B300")
        await world.storage.record_inventory(NodeId("n1"), opened.epoch, evolve(seen, gpus=(seen.gpus[0], other)), "sha256:j", world.now)
        for expected in ({}, {"GPU-1": "h100"}):
            nodes = [await world.storage.get_node(NodeId("n1"), world.now), *await world.storage.placement_nodes(FLEET, world.now)]
            nodes += (await world.storage.list_nodes(None, Page(), world.now))[0]
            nodes.append(await world.storage.set_node_state(NodeId("n1"), NodeState.ACTIVE, "", world.now))
            assert [node.card_series for node in nodes if node is not None] == [expected] * 4
            await add(world, "h100", "nvidia h100")


async def test_a_series_that_a_live_job_pins_is_not_deleted(open_world: OpenWorld) -> None:
    async with open_world() as world:
        await world.fleet()
        await add(world, "h100", "NVIDIA H100")
        job = await world.submit(spec=pinned("h100"))
        error = await refused(lambda: world.storage.remove_series(H100))
        assert (error.code, [one.subject for one in error.reasons]) == ("series-in-use", [job])
        await world.storage.request_stop(job, USER, world.now)
        await world.storage.remove_series(H100)


async def test_a_job_that_pins_no_known_series_is_not_written(open_world: OpenWorld) -> None:
    """The series was deleted between admission and submission."""
    async with open_world() as world:
        await world.fleet()
        error = await refused(lambda: world.submit(spec=pinned("h100")))
        assert (error.code, error.field) == ("no-such-series", "spec.resources.pools[0].series")
        assert await world.storage.get_job(JobId("job-a")) is None


async def test_changes_of_the_registry_wake_the_allocator_and_the_console(open_world: OpenWorld) -> None:
    """R-ENR-06: adding a series makes waiting jobs placeable at once."""
    async with open_world() as world, world.storage.open_pokes((Topic.JOBS, Topic.CONSOLE)) as pokes:
        await anext(pokes)  # the first look
        for change in (lambda: add(world, "h100", "NVIDIA H100"), lambda: world.storage.remove_series(H100)):
            await change()
            with trio.fail_after(5):
                heard = await anext(pokes)
                while Topic.JOBS not in heard:
                    heard |= await anext(pokes)


async def test_race_for_one_card_between_many_series_has_one_winner(open_world: OpenWorld) -> None:
    async with open_world() as world:
        won: list[str] = []
        lost: list[str] = []

        async def claim(series: str) -> None:
            try:
                await add(world, series, "NVIDIA H100", f"card of {series}")
                won.append(series)
            except Refused as error:
                lost.append(error.code)

        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(claim, f"series-{number}")
        assert (len(won), lost) == (1, ["card-taken"] * 7)
        (left,) = (await world.storage.hardware()).series
        assert left.card_names == ("NVIDIA H100", f"card of {won[0]}")


async def test_race_of_a_deletion_and_submissions_leaves_no_job_without_its_series(open_world: OpenWorld) -> None:
    for turn in range(4):
        async with open_world() as world:
            if await world.storage.get_fleet(FLEET) is None:
                await world.fleet()
            series = SeriesId(f"s{turn}")
            await add(world, series, f"card {turn}")
            outcomes: list[str] = []

            async def run(call: Callable[[], Awaitable[object]], done: str, outcomes: list[str] = outcomes) -> None:
                try:
                    await call()
                    outcomes.append(done)
                except Refused as error:
                    outcomes.append(error.code)

            async def delete(world: World = world, series: SeriesId = series) -> None:
                await world.storage.remove_series(series)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(run, delete, "deleted")
                for number in range(3):
                    name, spec = f"job-{turn}-{number}", pinned(series)
                    nursery.start_soon(run, lambda name=name, spec=spec, world=world: world.submit(name, spec=spec), "submitted")
            known = [one.series for one in (await world.storage.hardware()).series]
            if "deleted" in outcomes:
                assert outcomes.count("no-such-series") == 3
                assert series not in known
            else:
                assert "series-in-use" in outcomes
                assert "submitted" in outcomes
                assert series in known


async def test_retry_of_a_job_whose_series_is_gone_is_refused(open_world: OpenWorld) -> None:
    async with open_world() as world:
        await world.node(cards=("GPU-1",))
        await add(world, "h100", "H100")
        job = await world.submit(spec=pinned("h100"))
        claim = await world.launched(cards=("GPU-1",))
        await world.see(member_id(claim.attempt, 0), MemberPhase.TERMINATED, exit_code=3, ended_at=world.now)
        assert await world.step(claim, AttemptEvent.ALL_ENDED)
        await world.storage.remove_series(H100)
        assert (await refused(lambda: world.storage.retry(job, USER, world.now))).code == "series-gone"
