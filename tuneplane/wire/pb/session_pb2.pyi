from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MemberPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MEMBER_PHASE_UNSPECIFIED: _ClassVar[MemberPhase]
    MEMBER_PHASE_PENDING: _ClassVar[MemberPhase]
    MEMBER_PHASE_PREPARING: _ClassVar[MemberPhase]
    MEMBER_PHASE_PREPARED: _ClassVar[MemberPhase]
    MEMBER_PHASE_STARTING: _ClassVar[MemberPhase]
    MEMBER_PHASE_RUNNING: _ClassVar[MemberPhase]
    MEMBER_PHASE_STOPPING: _ClassVar[MemberPhase]
    MEMBER_PHASE_TERMINATED: _ClassVar[MemberPhase]
    MEMBER_PHASE_ABORTED: _ClassVar[MemberPhase]
    MEMBER_PHASE_UNKNOWN: _ClassVar[MemberPhase]

class CommandKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COMMAND_KIND_UNSPECIFIED: _ClassVar[CommandKind]
    COMMAND_KIND_PREPARE: _ClassVar[CommandKind]
    COMMAND_KIND_COMMIT: _ClassVar[CommandKind]
    COMMAND_KIND_STOP: _ClassVar[CommandKind]
    COMMAND_KIND_FORGET: _ClassVar[CommandKind]
MEMBER_PHASE_UNSPECIFIED: MemberPhase
MEMBER_PHASE_PENDING: MemberPhase
MEMBER_PHASE_PREPARING: MemberPhase
MEMBER_PHASE_PREPARED: MemberPhase
MEMBER_PHASE_STARTING: MemberPhase
MEMBER_PHASE_RUNNING: MemberPhase
MEMBER_PHASE_STOPPING: MemberPhase
MEMBER_PHASE_TERMINATED: MemberPhase
MEMBER_PHASE_ABORTED: MemberPhase
MEMBER_PHASE_UNKNOWN: MemberPhase
COMMAND_KIND_UNSPECIFIED: CommandKind
COMMAND_KIND_PREPARE: CommandKind
COMMAND_KIND_COMMIT: CommandKind
COMMAND_KIND_STOP: CommandKind
COMMAND_KIND_FORGET: CommandKind

class NodeFrame(_message.Message):
    __slots__ = ("hello", "heartbeat", "inventory", "answer", "observation", "reconcile_done", "log", "drain")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    INVENTORY_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    RECONCILE_DONE_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    heartbeat: Heartbeat
    inventory: InventoryReport
    answer: CommandAnswer
    observation: Observation
    reconcile_done: ReconcileDone
    log: LogChunk
    drain: DrainWish
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping[str, object]]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping[str, object]]] = ..., inventory: _Optional[_Union[InventoryReport, _Mapping[str, object]]] = ..., answer: _Optional[_Union[CommandAnswer, _Mapping[str, object]]] = ..., observation: _Optional[_Union[Observation, _Mapping[str, object]]] = ..., reconcile_done: _Optional[_Union[ReconcileDone, _Mapping[str, object]]] = ..., log: _Optional[_Union[LogChunk, _Mapping[str, object]]] = ..., drain: _Optional[_Union[DrainWish, _Mapping[str, object]]] = ...) -> None: ...

class GatewayFrame(_message.Message):
    __slots__ = ("welcome", "heartbeat", "command", "ack", "log_read", "log_cancel", "log_credit", "goodbye", "drain")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    LOG_READ_FIELD_NUMBER: _ClassVar[int]
    LOG_CANCEL_FIELD_NUMBER: _ClassVar[int]
    LOG_CREDIT_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    heartbeat: HeartbeatReply
    command: Command
    ack: ObservationAck
    log_read: LogRead
    log_cancel: LogCancel
    log_credit: LogCredit
    goodbye: Goodbye
    drain: DrainState
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping[str, object]]] = ..., heartbeat: _Optional[_Union[HeartbeatReply, _Mapping[str, object]]] = ..., command: _Optional[_Union[Command, _Mapping[str, object]]] = ..., ack: _Optional[_Union[ObservationAck, _Mapping[str, object]]] = ..., log_read: _Optional[_Union[LogRead, _Mapping[str, object]]] = ..., log_cancel: _Optional[_Union[LogCancel, _Mapping[str, object]]] = ..., log_credit: _Optional[_Union[LogCredit, _Mapping[str, object]]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping[str, object]]] = ..., drain: _Optional[_Union[DrainState, _Mapping[str, object]]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "node", "fleet", "boot_id", "machine_id", "journal_id", "journal_sequence", "node_version", "address", "sent_at")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    FLEET_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    MACHINE_ID_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_ID_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    NODE_VERSION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SENT_AT_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    node: str
    fleet: str
    boot_id: str
    machine_id: str
    journal_id: str
    journal_sequence: int
    node_version: str
    address: str
    sent_at: int
    def __init__(self, protocol: _Optional[int] = ..., node: _Optional[str] = ..., fleet: _Optional[str] = ..., boot_id: _Optional[str] = ..., machine_id: _Optional[str] = ..., journal_id: _Optional[str] = ..., journal_sequence: _Optional[int] = ..., node_version: _Optional[str] = ..., address: _Optional[str] = ..., sent_at: _Optional[int] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("sequence", "inventory_digest", "sent_at", "inventory_age_seconds", "clock_offset", "clock_error_seconds")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    INVENTORY_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SENT_AT_FIELD_NUMBER: _ClassVar[int]
    INVENTORY_AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_OFFSET_FIELD_NUMBER: _ClassVar[int]
    CLOCK_ERROR_SECONDS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    inventory_digest: str
    sent_at: int
    inventory_age_seconds: float
    clock_offset: int
    clock_error_seconds: float
    def __init__(self, sequence: _Optional[int] = ..., inventory_digest: _Optional[str] = ..., sent_at: _Optional[int] = ..., inventory_age_seconds: _Optional[float] = ..., clock_offset: _Optional[int] = ..., clock_error_seconds: _Optional[float] = ...) -> None: ...

class DrainWish(_message.Message):
    __slots__ = ("revision", "wanted", "reason")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    revision: int
    wanted: bool
    reason: bytes
    def __init__(self, revision: _Optional[int] = ..., wanted: _Optional[bool] = ..., reason: _Optional[bytes] = ...) -> None: ...

class CardLink(_message.Message):
    __slots__ = ("peer", "nvlinks", "distance")
    PEER_FIELD_NUMBER: _ClassVar[int]
    NVLINKS_FIELD_NUMBER: _ClassVar[int]
    DISTANCE_FIELD_NUMBER: _ClassVar[int]
    peer: str
    nvlinks: int
    distance: int
    def __init__(self, peer: _Optional[str] = ..., nvlinks: _Optional[int] = ..., distance: _Optional[int] = ...) -> None: ...

class MigInstance(_message.Message):
    __slots__ = ("uuid", "name", "memory_bytes")
    UUID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    name: bytes
    memory_bytes: int
    def __init__(self, uuid: _Optional[str] = ..., name: _Optional[bytes] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class Gpu(_message.Message):
    __slots__ = ("index", "uuid", "name", "memory_bytes", "bus", "mig", "instances", "links")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    BUS_FIELD_NUMBER: _ClassVar[int]
    MIG_FIELD_NUMBER: _ClassVar[int]
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    index: int
    uuid: str
    name: bytes
    memory_bytes: int
    bus: str
    mig: bool
    instances: _containers.RepeatedCompositeFieldContainer[MigInstance]
    links: _containers.RepeatedCompositeFieldContainer[CardLink]
    def __init__(self, index: _Optional[int] = ..., uuid: _Optional[str] = ..., name: _Optional[bytes] = ..., memory_bytes: _Optional[int] = ..., bus: _Optional[str] = ..., mig: _Optional[bool] = ..., instances: _Optional[_Iterable[_Union[MigInstance, _Mapping[str, object]]]] = ..., links: _Optional[_Iterable[_Union[CardLink, _Mapping[str, object]]]] = ...) -> None: ...

class GpuIndexes(_message.Message):
    __slots__ = ("indexes",)
    INDEXES_FIELD_NUMBER: _ClassVar[int]
    indexes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, indexes: _Optional[_Iterable[int]] = ...) -> None: ...

class Budgets(_message.Message):
    __slots__ = ("cpu_millis", "memory_bytes", "gpus", "port_first", "port_last", "staging_bytes", "gpu_uuids")
    CPU_MILLIS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    PORT_FIRST_FIELD_NUMBER: _ClassVar[int]
    PORT_LAST_FIELD_NUMBER: _ClassVar[int]
    STAGING_BYTES_FIELD_NUMBER: _ClassVar[int]
    GPU_UUIDS_FIELD_NUMBER: _ClassVar[int]
    cpu_millis: int
    memory_bytes: int
    gpus: GpuIndexes
    port_first: int
    port_last: int
    staging_bytes: int
    gpu_uuids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, cpu_millis: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., gpus: _Optional[_Union[GpuIndexes, _Mapping[str, object]]] = ..., port_first: _Optional[int] = ..., port_last: _Optional[int] = ..., staging_bytes: _Optional[int] = ..., gpu_uuids: _Optional[_Iterable[str]] = ...) -> None: ...

class Interface(_message.Message):
    __slots__ = ("name", "addresses")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    name: str
    addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class CardBinding(_message.Message):
    __slots__ = ("index", "uuid")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    index: int
    uuid: str
    def __init__(self, index: _Optional[int] = ..., uuid: _Optional[str] = ...) -> None: ...

class CardFault(_message.Message):
    __slots__ = ("card", "code", "detail", "whole_node", "since")
    CARD_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    WHOLE_NODE_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    card: str
    code: str
    detail: bytes
    whole_node: bool
    since: int
    def __init__(self, card: _Optional[str] = ..., code: _Optional[str] = ..., detail: _Optional[bytes] = ..., whole_node: _Optional[bool] = ..., since: _Optional[int] = ...) -> None: ...

class CardFaults(_message.Message):
    __slots__ = ("faults",)
    FAULTS_FIELD_NUMBER: _ClassVar[int]
    faults: _containers.RepeatedCompositeFieldContainer[CardFault]
    def __init__(self, faults: _Optional[_Iterable[_Union[CardFault, _Mapping[str, object]]]] = ...) -> None: ...

class Inventory(_message.Message):
    __slots__ = ("hostname", "node_version", "cpu_count", "memory_bytes", "gpus", "driver_version", "runtime", "gpu_runtime", "storage_root", "storage_root_seen", "budgets", "problems", "interfaces", "route_address", "hold", "strangers", "cards_unknown", "card_bindings", "card_faults")
    HOSTNAME_FIELD_NUMBER: _ClassVar[int]
    NODE_VERSION_FIELD_NUMBER: _ClassVar[int]
    CPU_COUNT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    DRIVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_FIELD_NUMBER: _ClassVar[int]
    GPU_RUNTIME_FIELD_NUMBER: _ClassVar[int]
    STORAGE_ROOT_FIELD_NUMBER: _ClassVar[int]
    STORAGE_ROOT_SEEN_FIELD_NUMBER: _ClassVar[int]
    BUDGETS_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    INTERFACES_FIELD_NUMBER: _ClassVar[int]
    ROUTE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    STRANGERS_FIELD_NUMBER: _ClassVar[int]
    CARDS_UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    CARD_BINDINGS_FIELD_NUMBER: _ClassVar[int]
    CARD_FAULTS_FIELD_NUMBER: _ClassVar[int]
    hostname: bytes
    node_version: str
    cpu_count: int
    memory_bytes: int
    gpus: _containers.RepeatedCompositeFieldContainer[Gpu]
    driver_version: bytes
    runtime: bytes
    gpu_runtime: bool
    storage_root: bytes
    storage_root_seen: bool
    budgets: Budgets
    problems: _containers.RepeatedScalarFieldContainer[bytes]
    interfaces: _containers.RepeatedCompositeFieldContainer[Interface]
    route_address: str
    hold: EpochHold
    strangers: _containers.RepeatedCompositeFieldContainer[Stranger]
    cards_unknown: bool
    card_bindings: _containers.RepeatedCompositeFieldContainer[CardBinding]
    card_faults: CardFaults
    def __init__(self, hostname: _Optional[bytes] = ..., node_version: _Optional[str] = ..., cpu_count: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., gpus: _Optional[_Iterable[_Union[Gpu, _Mapping[str, object]]]] = ..., driver_version: _Optional[bytes] = ..., runtime: _Optional[bytes] = ..., gpu_runtime: _Optional[bool] = ..., storage_root: _Optional[bytes] = ..., storage_root_seen: _Optional[bool] = ..., budgets: _Optional[_Union[Budgets, _Mapping[str, object]]] = ..., problems: _Optional[_Iterable[bytes]] = ..., interfaces: _Optional[_Iterable[_Union[Interface, _Mapping[str, object]]]] = ..., route_address: _Optional[str] = ..., hold: _Optional[_Union[EpochHold, _Mapping[str, object]]] = ..., strangers: _Optional[_Iterable[_Union[Stranger, _Mapping[str, object]]]] = ..., cards_unknown: _Optional[bool] = ..., card_bindings: _Optional[_Iterable[_Union[CardBinding, _Mapping[str, object]]]] = ..., card_faults: _Optional[_Union[CardFaults, _Mapping[str, object]]] = ...) -> None: ...

class Stranger(_message.Message):
    __slots__ = ("container", "name", "member", "image", "since", "cards", "cpu_millis", "memory_bytes")
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    CARDS_FIELD_NUMBER: _ClassVar[int]
    CPU_MILLIS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    container: str
    name: bytes
    member: bytes
    image: bytes
    since: int
    cards: StrangerCards
    cpu_millis: int
    memory_bytes: int
    def __init__(self, container: _Optional[str] = ..., name: _Optional[bytes] = ..., member: _Optional[bytes] = ..., image: _Optional[bytes] = ..., since: _Optional[int] = ..., cards: _Optional[_Union[StrangerCards, _Mapping[str, object]]] = ..., cpu_millis: _Optional[int] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class StrangerCards(_message.Message):
    __slots__ = ("uuids",)
    UUIDS_FIELD_NUMBER: _ClassVar[int]
    uuids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, uuids: _Optional[_Iterable[str]] = ...) -> None: ...

class EpochHold(_message.Message):
    __slots__ = ("id", "known_epoch", "told_epoch", "since")
    ID_FIELD_NUMBER: _ClassVar[int]
    KNOWN_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOLD_EPOCH_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    id: str
    known_epoch: int
    told_epoch: int
    since: int
    def __init__(self, id: _Optional[str] = ..., known_epoch: _Optional[int] = ..., told_epoch: _Optional[int] = ..., since: _Optional[int] = ...) -> None: ...

class InventoryReport(_message.Message):
    __slots__ = ("inventory", "digest")
    INVENTORY_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    inventory: Inventory
    digest: str
    def __init__(self, inventory: _Optional[_Union[Inventory, _Mapping[str, object]]] = ..., digest: _Optional[str] = ...) -> None: ...

class CommandAnswer(_message.Message):
    __slots__ = ("operation", "accepted", "code", "detail")
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    operation: str
    accepted: bool
    code: str
    detail: bytes
    def __init__(self, operation: _Optional[str] = ..., accepted: _Optional[bool] = ..., code: _Optional[str] = ..., detail: _Optional[bytes] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("phase", "done", "total", "unit")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    phase: str
    done: int
    total: int
    unit: str
    def __init__(self, phase: _Optional[str] = ..., done: _Optional[int] = ..., total: _Optional[int] = ..., unit: _Optional[str] = ...) -> None: ...

class Observation(_message.Message):
    __slots__ = ("member", "revision", "phase", "plan_digest", "boot_id", "hold_seconds_left", "container_id", "started_at", "ended_at", "exit_code", "oom_killed", "reason_code", "reason_detail", "cleaned", "progress")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    PLAN_DIGEST_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    HOLD_SECONDS_LEFT_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    OOM_KILLED_FIELD_NUMBER: _ClassVar[int]
    REASON_CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_DETAIL_FIELD_NUMBER: _ClassVar[int]
    CLEANED_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    member: str
    revision: int
    phase: MemberPhase
    plan_digest: str
    boot_id: str
    hold_seconds_left: float
    container_id: str
    started_at: int
    ended_at: int
    exit_code: int
    oom_killed: bool
    reason_code: str
    reason_detail: bytes
    cleaned: bool
    progress: Progress
    def __init__(self, member: _Optional[str] = ..., revision: _Optional[int] = ..., phase: _Optional[_Union[MemberPhase, str]] = ..., plan_digest: _Optional[str] = ..., boot_id: _Optional[str] = ..., hold_seconds_left: _Optional[float] = ..., container_id: _Optional[str] = ..., started_at: _Optional[int] = ..., ended_at: _Optional[int] = ..., exit_code: _Optional[int] = ..., oom_killed: _Optional[bool] = ..., reason_code: _Optional[str] = ..., reason_detail: _Optional[bytes] = ..., cleaned: _Optional[bool] = ..., progress: _Optional[_Union[Progress, _Mapping[str, object]]] = ...) -> None: ...

class ReconcileDone(_message.Message):
    __slots__ = ("members",)
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    members: int
    def __init__(self, members: _Optional[int] = ...) -> None: ...

class LogChunk(_message.Message):
    __slots__ = ("request", "offset", "data", "gap", "end", "error")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    request: int
    offset: int
    data: bytes
    gap: int
    end: bool
    error: bytes
    def __init__(self, request: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., gap: _Optional[int] = ..., end: _Optional[bool] = ..., error: _Optional[bytes] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("protocol", "session_epoch", "gateway", "heartbeat_seconds", "idle_seconds", "sent_at", "accepted_hold", "accepted_cards")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SESSION_EPOCH_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    IDLE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SENT_AT_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_HOLD_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_CARDS_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    session_epoch: int
    gateway: str
    heartbeat_seconds: float
    idle_seconds: float
    sent_at: int
    accepted_hold: str
    accepted_cards: str
    def __init__(self, protocol: _Optional[int] = ..., session_epoch: _Optional[int] = ..., gateway: _Optional[str] = ..., heartbeat_seconds: _Optional[float] = ..., idle_seconds: _Optional[float] = ..., sent_at: _Optional[int] = ..., accepted_hold: _Optional[str] = ..., accepted_cards: _Optional[str] = ...) -> None: ...

class HeartbeatReply(_message.Message):
    __slots__ = ("sequence", "received_at")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_AT_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    received_at: int
    def __init__(self, sequence: _Optional[int] = ..., received_at: _Optional[int] = ...) -> None: ...

class LeftMember(_message.Message):
    __slots__ = ("member", "phase")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    member: str
    phase: MemberPhase
    def __init__(self, member: _Optional[str] = ..., phase: _Optional[_Union[MemberPhase, str]] = ...) -> None: ...

class DrainState(_message.Message):
    __slots__ = ("revision", "state", "drained", "left")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    revision: int
    state: str
    drained: bool
    left: _containers.RepeatedCompositeFieldContainer[LeftMember]
    def __init__(self, revision: _Optional[int] = ..., state: _Optional[str] = ..., drained: _Optional[bool] = ..., left: _Optional[_Iterable[_Union[LeftMember, _Mapping[str, object]]]] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("operation", "kind", "member", "session_epoch", "claim_epoch", "plan", "plan_digest", "hold_seconds", "stop_signal", "stop_grace_seconds", "reason", "trace", "cause", "ended", "stranger", "container")
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    SESSION_EPOCH_FIELD_NUMBER: _ClassVar[int]
    CLAIM_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    PLAN_DIGEST_FIELD_NUMBER: _ClassVar[int]
    HOLD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STOP_SIGNAL_FIELD_NUMBER: _ClassVar[int]
    STOP_GRACE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    STRANGER_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    operation: str
    kind: CommandKind
    member: str
    session_epoch: int
    claim_epoch: int
    plan: bytes
    plan_digest: str
    hold_seconds: float
    stop_signal: str
    stop_grace_seconds: float
    reason: bytes
    trace: str
    cause: str
    ended: bool
    stranger: bool
    container: str
    def __init__(self, operation: _Optional[str] = ..., kind: _Optional[_Union[CommandKind, str]] = ..., member: _Optional[str] = ..., session_epoch: _Optional[int] = ..., claim_epoch: _Optional[int] = ..., plan: _Optional[bytes] = ..., plan_digest: _Optional[str] = ..., hold_seconds: _Optional[float] = ..., stop_signal: _Optional[str] = ..., stop_grace_seconds: _Optional[float] = ..., reason: _Optional[bytes] = ..., trace: _Optional[str] = ..., cause: _Optional[str] = ..., ended: _Optional[bool] = ..., stranger: _Optional[bool] = ..., container: _Optional[str] = ...) -> None: ...

class ObservationAck(_message.Message):
    __slots__ = ("member", "revision")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    member: str
    revision: int
    def __init__(self, member: _Optional[str] = ..., revision: _Optional[int] = ...) -> None: ...

class LogRead(_message.Message):
    __slots__ = ("request", "member", "offset", "tail_lines", "max_bytes", "follow")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TAIL_LINES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    request: int
    member: str
    offset: int
    tail_lines: int
    max_bytes: int
    follow: bool
    def __init__(self, request: _Optional[int] = ..., member: _Optional[str] = ..., offset: _Optional[int] = ..., tail_lines: _Optional[int] = ..., max_bytes: _Optional[int] = ..., follow: _Optional[bool] = ...) -> None: ...

class LogCancel(_message.Message):
    __slots__ = ("request",)
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    request: int
    def __init__(self, request: _Optional[int] = ...) -> None: ...

class LogCredit(_message.Message):
    __slots__ = ("size",)
    SIZE_FIELD_NUMBER: _ClassVar[int]
    size: int
    def __init__(self, size: _Optional[int] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("code", "detail", "retry_after_seconds")
    CODE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    code: str
    detail: bytes
    retry_after_seconds: float
    def __init__(self, code: _Optional[str] = ..., detail: _Optional[bytes] = ..., retry_after_seconds: _Optional[float] = ...) -> None: ...
