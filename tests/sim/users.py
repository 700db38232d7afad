"""Users: they submit jobs of every shape, and stop some of them at any moment."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

from attrs import define, field

from tuneplane.domain.errors import NotFound, Refused, StorageUnavailable
from tuneplane.domain.ids import JobId, TraceId, UserName
from tuneplane.domain.jobspec import JobBody, JobSpec, Metadata, Pool, Resources, RuntimeRef, StopPolicy, WorkKind

from .clock import sleep
from .fate import Fate, Life, true_now
from .judge import Judge
from .machine import BROKEN_IMAGE
from .processes import FLEET, Ground

ADA = UserName("ada")
IMAGE = "registry.example/train@sha256:" + "0" * 64
SUBMIT_SECONDS = 10.0  # mean, between two jobs
MOST_MACHINES = 4  # of a gang


@define(eq=False)
class Users:
    ground: Ground
    judge: Judge
    jobs: list[JobId] = field(factory=list)
    busy: int = 1  # who will still do something: those that use the jobs, and whoever submits them

    @property
    def fate(self) -> Fate:
        return self.ground.fate

    async def run(self) -> None:
        luck = self.fate.random
        for number in range(luck.randint(2, 8)):
            await sleep(self.fate.soon(SUBMIT_SECONDS))
            job = JobId(f"job-{number}")
            self.jobs.append(job)
            self.busy += 1
            self.ground.nursery.start_soon(self._one, job, self._spec(), luck.random() < self.fate.focus.stop_share)
        self.busy -= 1

    def _spec(self) -> JobSpec:
        """Something that admission lets through: it fits the machines when they are empty."""
        luck = self.fate.random
        machines = luck.choice((1, 1, luck.randint(1, min(len(self.judge.machines), MOST_MACHINES))))
        granted = sorted((machine.gpus for machine in self.judge.machines.values()), reverse=True)
        gpus = luck.choice((0, luck.randint(0, granted[machines - 1])))
        pool = Pool(nodes=machines, gpus_per_node=gpus, cpus=luck.choice((1.0, 2.0, 4.0)), memory_gb=luck.choice((1.0, 8.0, 16.0)))
        body = JobBody(
            command=(BROKEN_IMAGE,) if luck.random() < 0.05 else ("train",),
            runtime=RuntimeRef(image="train"),
            resources=Resources(pools=(pool,)),
            stop=StopPolicy(grace_seconds=luck.choice((0.0, 2.0, 10.0))),
            max_runtime_seconds=luck.choice((None, None, 20.0)),
            retries=luck.choice((0, 0, 0, 1, 2)),
        )
        return JobSpec(apiVersion="tuneplane/v1", kind=WorkKind.TRAINING_JOB, metadata=Metadata(name="sim"), spec=body)

    async def _one(self, job: JobId, spec: JobSpec, stops: bool) -> None:
        await self._use(job, spec, stops)
        self.busy -= 1

    async def _use(self, job: JobId, spec: JobSpec, stops: bool) -> None:
        twin = self.ground.twin(Life("user", self.fate))
        await _insist(
            lambda: twin.submit(job, spec, owner=ADA, fleet=FLEET, image=IMAGE, trace=TraceId(job), idempotency_key=job, now=true_now())
        )
        self.fate.history.add("user", "{} submitted, {} machines", job, spec.pool.nodes)
        if stops:
            await sleep(self.fate.soon(self.fate.focus.stop_seconds))
            with self._gone_with_a_restore():
                await _insist(lambda: twin.request_stop(job, ADA, true_now()))
                self.fate.history.add("user", "{} stop accepted", job)
        elif self.fate.strikes("retry", 1.0):
            await sleep(self.fate.soon(self.fate.focus.stop_seconds * 2))
            with suppress(Refused), self._gone_with_a_restore():
                await _insist(lambda: twin.retry(job, ADA, true_now()))
                self.fate.history.add("user", "{} is to be tried again", job)

    @contextmanager
    def _gone_with_a_restore(self) -> Iterator[None]:
        """A database that was put back may not know a job any more; any other one does."""
        try:
            yield
        except NotFound:
            self.fate.judge(bool(self.judge.seen_epochs), "a job that was submitted is gone")


async def _insist(act: Callable[[], Awaitable[object]]) -> None:
    """As an API client does: the same request, with the same key, until it is answered."""
    while True:
        try:
            await act()
            return
        except StorageUnavailable:
            await sleep(0.5)
