"""Hypothesis strategies for every frame, within what the codec accepts."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import strategies as st

from tuneplane.domain.frames import (
    Command,
    CommandAnswer,
    CommandKind,
    DrainState,
    DrainWish,
    Goodbye,
    Heartbeat,
    HeartbeatReply,
    Hello,
    InventoryReport,
    LogCancel,
    LogChunk,
    LogCredit,
    LogPiece,
    LogQuery,
    LogRead,
    Observation,
    ObservationAck,
    Progress,
    ReconcileDone,
    Welcome,
)
from tuneplane.domain.inventory import (
    Budgets,
    CardBinding,
    CardFault,
    CardLink,
    EpochHold,
    Gpu,
    Interface,
    Inventory,
    MigInstance,
    Stranger,
)
from tuneplane.domain.launch_table import MemberPhase
from tuneplane.domain.nodes import Left, NodeState

counts = st.integers(0, 2**63 - 1)
small = st.integers(0, 65535)
ids = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:@/-]{0,40}", fullmatch=True)
maybe_ids = ids | st.just("")
codes = st.from_regex(r"[a-z0-9]{1,12}(-[a-z0-9]{1,12}){0,3}", fullmatch=True) | st.just("")
words = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=16)
texts = st.text(st.characters(include_characters="\t\n", exclude_categories=("Cs", "Cc")), max_size=60)
digests = st.just("") | st.binary(min_size=32, max_size=32).map(lambda raw: "sha256:" + raw.hex())
times = st.datetimes(datetime(2000, 1, 2), datetime(2199, 12, 30)).map(lambda value: value.replace(tzinfo=UTC))
seconds = st.floats(0, 1e6)
blobs = st.binary(max_size=200)

gpus = st.builds(
    Gpu,
    index=st.integers(0, 256),
    uuid=ids,
    name=texts,
    memory_bytes=counts,
    bus=st.just("") | ids,
    mig=st.booleans(),
    instances=st.lists(st.builds(MigInstance, uuid=ids, name=texts, memory_bytes=counts), max_size=2).map(tuple),
    links=st.lists(st.builds(CardLink, peer=ids, nvlinks=st.integers(0, 256), distance=st.integers(0, 50)), max_size=2).map(tuple),
)
card_faults = st.builds(CardFault, card=maybe_ids, code=codes, detail=texts, whole_node=st.booleans(), since=times)
card_bindings = st.builds(CardBinding, index=st.integers(0, 256), uuid=ids)
budgets = st.builds(
    Budgets,
    cpu_millis=st.none() | counts,
    memory_bytes=st.none() | counts,
    gpu_indexes=st.none() | st.lists(st.integers(0, 256), max_size=4).map(tuple),
    gpu_uuids=st.lists(ids, max_size=2).map(tuple),
    port_first=st.integers(1, 30000),
    port_last=st.integers(30000, 65535),
    staging_bytes=counts,
)
addresses = st.ip_addresses().map(str)
interfaces = st.builds(
    Interface, name=st.from_regex(r"[a-z][a-z0-9.@_-]{0,14}", fullmatch=True), addresses=st.lists(addresses, max_size=2).map(tuple)
)
strangers = st.builds(
    Stranger,
    container=st.just("") | ids,
    name=texts,
    member=texts,
    image=texts,
    since=st.none() | times,
    gpu_uuids=st.none() | st.lists(ids, max_size=3).map(tuple),
    cpu_millis=st.none() | counts,
    memory_bytes=st.none() | counts,
)
inventories = st.builds(
    Inventory,
    hostname=texts,
    node_version=words,
    cpu_count=small,
    memory_bytes=counts,
    gpus=st.lists(gpus, max_size=3).map(tuple),
    driver_version=texts,
    runtime=texts,
    gpu_runtime=st.booleans(),
    storage_root=texts,
    storage_root_seen=st.booleans(),
    budgets=budgets,
    problems=st.lists(texts, max_size=3).map(tuple),
    strangers=st.lists(strangers, max_size=3).map(tuple),
    hold=st.none() | st.builds(EpochHold, id=ids, known_epoch=small, told_epoch=small, since=times),
    interfaces=st.lists(interfaces, max_size=3).map(tuple),
    route_address=st.just("") | addresses,
    cards_known=st.booleans(),
    card_bindings=st.lists(card_bindings, max_size=2).map(tuple),
    card_faults=st.none() | st.lists(card_faults, max_size=2).map(tuple),
)
progress = st.builds(Progress, phase=codes, done=counts, total=counts, unit=codes)

node_frames = st.one_of(
    st.builds(
        Hello,
        protocol=small,
        node=ids,
        fleet=ids,
        boot_id=ids,
        machine_id=ids,
        journal_id=ids,
        journal_sequence=counts,
        node_version=words,
        address=words,
        sent_at=times,
    ),
    st.builds(
        Heartbeat,
        sequence=counts,
        inventory_digest=digests,
        sent_at=times,
        inventory_age_seconds=seconds,
        clock_offset_seconds=st.none() | st.integers(-(10**15), 10**15).map(lambda micros: micros / 1e6),
        clock_error_seconds=seconds,
    ),
    st.builds(DrainWish, revision=counts, wanted=st.booleans(), reason=texts),
    st.builds(InventoryReport, inventory=inventories, digest=digests),
    st.builds(CommandAnswer, operation=ids, accepted=st.booleans(), code=codes, detail=texts),
    st.builds(
        Observation,
        member=ids,
        revision=counts,
        phase=st.sampled_from(MemberPhase),
        plan_digest=digests,
        boot_id=maybe_ids,
        hold_seconds_left=st.none() | seconds,
        container_id=maybe_ids,
        started_at=st.none() | times,
        ended_at=st.none() | times,
        exit_code=st.none() | st.integers(-255, 255),
        oom_killed=st.booleans(),
        reason_code=codes,
        reason_detail=texts,
        cleaned=st.booleans(),
        progress=st.none() | progress,
    ),
    st.builds(ReconcileDone, members=small),
    st.builds(LogChunk, request=counts, offset=counts, data=blobs, gap=counts, end=st.booleans(), error=texts),
)
gateway_frames = st.one_of(
    st.builds(
        Welcome,
        protocol=small,
        session_epoch=counts,
        gateway=ids,
        heartbeat_seconds=st.floats(0.01, 100),
        idle_seconds=st.floats(0.01, 100),
        sent_at=times,
        accepted_hold=st.just("") | ids,
        accepted_cards=st.just("") | ids,
    ),
    st.builds(HeartbeatReply, sequence=counts, received_at=st.none() | times),
    st.builds(
        DrainState,
        revision=counts,
        state=st.sampled_from(NodeState),
        drained=st.booleans(),
        left=st.lists(st.builds(Left, member=ids, phase=st.sampled_from(MemberPhase)), max_size=3).map(tuple),
    ),
    st.builds(
        Command,
        operation=ids,
        kind=st.sampled_from(CommandKind),
        member=ids,
        session_epoch=counts,
        claim_epoch=counts,
        plan=blobs,
        plan_digest=digests,
        hold_seconds=seconds,
        stop_signal=words,
        stop_grace_seconds=seconds,
        reason=texts,
        trace=maybe_ids,
        cause=words,
        ended=st.booleans(),
        stranger=st.booleans(),
        container=st.just("") | ids,
    ),
    st.builds(ObservationAck, member=ids, revision=counts),
    st.builds(
        LogRead,
        request=counts,
        member=ids,
        offset=st.none() | counts,
        tail_lines=st.none() | st.integers(0, 1_000_000),
        max_bytes=st.integers(0, 1 << 40),
        follow=st.booleans(),
    ),
    st.builds(LogCancel, request=counts),
    st.builds(LogCredit, size=st.integers(1, 256 * 1024)),
    st.builds(Goodbye, code=codes, detail=texts, retry_after_seconds=seconds),
)
queries = st.builds(
    LogQuery,
    node=ids,
    member=ids,
    offset=st.none() | counts,
    tail_lines=st.none() | st.integers(0, 1_000_000),
    max_bytes=st.integers(0, 1 << 40),
    follow=st.booleans(),
)
pieces = st.builds(LogPiece, offset=counts, data=blobs, gap=counts, end=st.booleans(), error=texts)
