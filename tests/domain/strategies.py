"""Hypothesis strategies for domain values, shared by the tests of this room."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st

from tuneplane.domain.fleets import Capability, Delivery, Fleet, FleetKind, FleetState
from tuneplane.domain.ids import AttemptId, FleetId, GatewayId, JobId, MemberId, NodeId, TraceId
from tuneplane.domain.inventory import Budgets, Gpu, Interface, Inventory
from tuneplane.domain.jobspec import JobBody, JobSpec, Metadata, Network, Orchestrator, Pool, Resources, RuntimeRef, WorkKind
from tuneplane.domain.launch_table import AttemptState, LaunchView, MemberPhase, MemberView
from tuneplane.domain.nodes import Capacity, Connection, Cordon, Node, NodeState
from tuneplane.domain.sight import Brake, Sight

EPOCH = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)
SECONDS = st.floats(min_value=-2000, max_value=2000, allow_nan=False)
MOMENTS = SECONDS.map(lambda seconds: EPOCH + timedelta(seconds=seconds))
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)


def optional(values: st.SearchStrategy) -> st.SearchStrategy:
    return st.none() | values


@st.composite
def member_views(draw: st.DrawFn, rank: int) -> MemberView:
    return MemberView(
        member=MemberId(f"job-a-1-{rank}"),
        node=NodeId(f"node-{draw(st.integers(0, 2))}"),
        rank=rank,
        phase=draw(st.sampled_from(MemberPhase)),
        exit_code=draw(optional(st.sampled_from([0, 0, 1, 137]))),
        oom_killed=draw(st.booleans()) and draw(st.booleans()),
        reason_code=draw(st.sampled_from(["", "", "lost", "image-unavailable"])),
        ended_at=draw(optional(MOMENTS)),
        hold_expires_at=draw(optional(MOMENTS)),
        silent_since=draw(optional(MOMENTS)),
        connected_since=draw(optional(MOMENTS)),
    )


@st.composite
def sights(draw: st.DrawFn) -> Sight:
    brake = Brake(since=EPOCH, window_from=EPOCH, vanished=3, population=4)
    return Sight(
        seen_since=draw(MOMENTS),
        looked_at=draw(MOMENTS),
        gateways_since=draw(optional(MOMENTS)),
        released_at=draw(optional(MOMENTS)),
        brake=draw(optional(st.just(brake))),
    )


@st.composite
def launch_views(draw: st.DrawFn) -> LaunchView:
    count = draw(st.integers(1, 4))
    return LaunchView(
        job=JobId("job-a"),
        attempt=AttemptId("job-a-1"),
        number=1,
        state=draw(st.sampled_from(AttemptState)),
        members=tuple(draw(member_views(rank)) for rank in range(count)),
        trace=TraceId("trace-a"),
        stop_asked_at=draw(optional(MOMENTS)),
        stop_asked_by=draw(st.sampled_from(["", "ada"])),
        entered_at=draw(MOMENTS),
        running_at=draw(optional(MOMENTS)),
        max_runtime_seconds=draw(optional(st.floats(1, 1000))),
        cause_code=draw(st.sampled_from(["", "max-runtime", "exit-code", "stopped"])),
        orchestrator=draw(st.sampled_from(Orchestrator)),
        retries=draw(st.integers(0, 2)),
        gang_deadline_seconds=draw(optional(st.floats(1, 1000))),
        sight=draw(optional(sights())),
    )


GPUS = st.lists(st.integers(0, 7), unique=True, max_size=4).map(
    lambda indexes: tuple(Gpu(index=i, uuid=f"GPU-{i}", name="H200", memory_bytes=141 << 30) for i in indexes)
)


# Every machine has the same docker0; some have a bond of their own, with or without an address (L-H5).
INTERFACES = tuple(
    (Interface(name="docker0", addresses=("172.17.0.1",)), *bond)
    for bond in ((), (Interface(name="bond0"),), *((Interface(name="bond0", addresses=(f"10.1.0.{last}",)),) for last in range(1, 7)))
)


@st.composite
def inventories(draw: st.DrawFn) -> Inventory:
    return Inventory(
        hostname=draw(TEXT),
        node_version="0.1.0",
        cpu_count=draw(st.integers(1, 256)),
        memory_bytes=draw(st.integers(1, 1 << 42)),
        gpus=draw(GPUS),
        storage_root="/srv/tuneplane",
        storage_root_seen=draw(st.booleans()),
        budgets=Budgets(cpu_millis=draw(optional(st.integers(1, 64000))), gpu_indexes=draw(optional(st.just((0, 1))))),
        problems=draw(st.sampled_from([(), (), ("no container runtime answers",)])),
        interfaces=draw(st.sampled_from([(), *INTERFACES, *INTERFACES])),
        route_address=draw(st.sampled_from(["", "127.0.0.1", *(f"10.0.0.{last}" for last in range(1, 9))])),
    )


@st.composite
def nodes(draw: st.DrawFn, number: int, now: datetime) -> Node:
    cpu, memory, gpus = draw(st.integers(0, 64000)), draw(st.integers(0, 1 << 40)), draw(st.integers(0, 8))
    free = draw(st.integers(0, gpus))
    connected = draw(st.booleans()) or draw(st.booleans())
    capacity = Capacity(
        cpu_millis=cpu,
        cpu_millis_used=draw(st.integers(0, cpu)),
        memory_bytes=memory,
        memory_bytes_used=draw(st.integers(0, memory)),
        gpus=gpus,
        gpus_used=gpus - free,
    )
    return Node(
        id=NodeId(f"node-{number:02}"),
        fleet=FleetId("lab"),
        address="10.0.0.1",
        state=draw(st.sampled_from([NodeState.ACTIVE, NodeState.ACTIVE, NodeState.DRAINING])),
        connection=Connection(
            state="connected" if connected else "disconnected",
            gateway=GatewayId("gw"),
            lease_expires_at=draw(optional(st.sampled_from([now + timedelta(seconds=9), now - timedelta(seconds=1)]))),
        ),
        cordons=draw(st.sampled_from([(), (), (Cordon(owner="storage", reason="no mount", since=EPOCH),)])),
        inventory=draw(inventories()),
        inventory_healthy=draw(st.booleans()) or draw(st.booleans()),
        capacity=draw(st.sampled_from([capacity, capacity, capacity, None])),
        free_gpu_uuids=tuple(f"GPU-{number}-{card}" for card in range(free)),
        held_ports=tuple(draw(st.sampled_from([(), (), range(20000, 21000), range(20900, 21000)]))),
        created_at=EPOCH,
    )


@st.composite
def node_lists(draw: st.DrawFn, now: datetime = EPOCH) -> list[Node]:
    return [draw(nodes(number, now)) for number in range(draw(st.integers(0, 5)))]


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    return Fleet(
        id=FleetId("lab"),
        kind=FleetKind.NODE,
        delivery=Delivery.SHARED_MOUNT,
        capabilities=draw(st.sampled_from([(Capability.TRAIN,), (Capability.TRAIN, Capability.EVAL), (Capability.SERVE,)])),
        state=draw(st.sampled_from([FleetState.ACTIVE, FleetState.ACTIVE, FleetState.DRAINING])),
        created_at=EPOCH,
    )


@st.composite
def job_specs(draw: st.DrawFn) -> JobSpec:
    """Valid specs for a Node Fleet."""
    gpus = draw(st.integers(0, 4))
    pool = Pool(
        nodes=draw(st.sampled_from([1, 1, 2, 3])),
        gpus_per_node=gpus,
        cpus=draw(st.floats(0.5, 64)) if gpus else draw(optional(st.floats(0.5, 64))),
        memory_gb=draw(st.floats(1.0, 900)) if gpus else draw(optional(st.floats(1.0, 900))),
    )
    ray = draw(st.sampled_from([False, False, True]))
    body = JobBody(
        command=tuple(
            draw(
                st.lists(
                    st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1, max_size=9),
                    min_size=1,
                    max_size=4,
                )
            )
        ),
        runtime=RuntimeRef(image="registry.example/train@sha256:" + "a" * 64, ray_version="2.60.0" if ray else ""),
        orchestrator=Orchestrator.RAY if ray else Orchestrator.PROCESS_GROUP,
        env=draw(st.dictionaries(st.from_regex(r"\A[A-SU-Z_][A-Z0-9_]{0,8}\Z"), TEXT.filter(lambda t: "\0" not in t), max_size=3)),
        resources=Resources(
            pools=(pool,), network=draw(st.sampled_from([None, None, Network(), Network(interface="bond0"), Network(interface="docker0")]))
        ),
        priority=draw(st.integers(-100, 100)),
    )
    return JobSpec(apiVersion="tuneplane/v1", kind=WorkKind.TRAINING_JOB, metadata=Metadata(name="demo"), spec=body)
