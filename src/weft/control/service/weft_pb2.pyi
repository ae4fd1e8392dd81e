from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Key(_message.Message):
    __slots__ = ("client", "sequence")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    client: str
    sequence: int
    def __init__(self, client: _Optional[str] = ..., sequence: _Optional[int] = ...) -> None: ...

class RegisterRequest(_message.Message):
    __slots__ = ("key", "application", "ttl_s", "job", "size_bytes")
    KEY_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    key: Key
    application: str
    ttl_s: float
    job: str
    size_bytes: int
    def __init__(self, key: _Optional[_Union[Key, _Mapping]] = ..., application: _Optional[str] = ..., ttl_s: _Optional[float] = ..., job: _Optional[str] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class RegisterReply(_message.Message):
    __slots__ = ("id", "level", "ttl_s")
    ID_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    id: str
    level: int
    ttl_s: float
    def __init__(self, id: _Optional[str] = ..., level: _Optional[int] = ..., ttl_s: _Optional[float] = ...) -> None: ...

class DeregisterRequest(_message.Message):
    __slots__ = ("key", "id")
    KEY_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    key: Key
    id: str
    def __init__(self, key: _Optional[_Union[Key, _Mapping]] = ..., id: _Optional[str] = ...) -> None: ...

class DeregisterReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ConnectRequest(_message.Message):
    __slots__ = ("key", "id", "source", "destination")
    KEY_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    key: Key
    id: str
    source: str
    destination: str
    def __init__(self, key: _Optional[_Union[Key, _Mapping]] = ..., id: _Optional[str] = ..., source: _Optional[str] = ..., destination: _Optional[str] = ...) -> None: ...

class ConnectReply(_message.Message):
    __slots__ = ("connection",)
    CONNECTION_FIELD_NUMBER: _ClassVar[int]
    connection: str
    def __init__(self, connection: _Optional[str] = ...) -> None: ...

class DisconnectRequest(_message.Message):
    __slots__ = ("connection",)
    CONNECTION_FIELD_NUMBER: _ClassVar[int]
    connection: str
    def __init__(self, connection: _Optional[str] = ...) -> None: ...

class DisconnectReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class RenewReply(_message.Message):
    __slots__ = ("ttl_s",)
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    ttl_s: float
    def __init__(self, ttl_s: _Optional[float] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("connect", "disconnect", "renew")
    CONNECT_FIELD_NUMBER: _ClassVar[int]
    DISCONNECT_FIELD_NUMBER: _ClassVar[int]
    RENEW_FIELD_NUMBER: _ClassVar[int]
    connect: ConnectRequest
    disconnect: DisconnectRequest
    renew: RenewRequest
    def __init__(self, connect: _Optional[_Union[ConnectRequest, _Mapping]] = ..., disconnect: _Optional[_Union[DisconnectRequest, _Mapping]] = ..., renew: _Optional[_Union[RenewRequest, _Mapping]] = ...) -> None: ...

class EventBatch(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[Event]
    def __init__(self, events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class AckBatch(_message.Message):
    __slots__ = ("acks",)
    ACKS_FIELD_NUMBER: _ClassVar[int]
    acks: _containers.RepeatedCompositeFieldContainer[Ack]
    def __init__(self, acks: _Optional[_Iterable[_Union[Ack, _Mapping]]] = ...) -> None: ...

class PortId(_message.Message):
    __slots__ = ("node", "port")
    NODE_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    node: str
    port: int
    def __init__(self, node: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("applications", "ports", "revisions", "groups")
    APPLICATIONS_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    REVISIONS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    applications: bool
    ports: bool
    revisions: int
    groups: bool
    def __init__(self, applications: _Optional[bool] = ..., ports: _Optional[bool] = ..., revisions: _Optional[int] = ..., groups: _Optional[bool] = ...) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("revision", "programmed", "held", "applications", "connections", "connections_without_path", "ports", "ports_pending", "ports_failing", "drifts", "up_s", "levels", "models", "problems", "listed_applications", "listed_ports", "listed_revisions", "groups")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    PROGRAMMED_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    APPLICATIONS_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_WITHOUT_PATH_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    PORTS_PENDING_FIELD_NUMBER: _ClassVar[int]
    PORTS_FAILING_FIELD_NUMBER: _ClassVar[int]
    DRIFTS_FIELD_NUMBER: _ClassVar[int]
    UP_S_FIELD_NUMBER: _ClassVar[int]
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    LISTED_APPLICATIONS_FIELD_NUMBER: _ClassVar[int]
    LISTED_PORTS_FIELD_NUMBER: _ClassVar[int]
    LISTED_REVISIONS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    revision: int
    programmed: int
    held: int
    applications: int
    connections: int
    connections_without_path: int
    ports: int
    ports_pending: int
    ports_failing: int
    drifts: int
    up_s: float
    levels: int
    models: int
    problems: _containers.RepeatedScalarFieldContainer[str]
    listed_applications: _containers.RepeatedCompositeFieldContainer[ApplicationState]
    listed_ports: _containers.RepeatedCompositeFieldContainer[PortState]
    listed_revisions: _containers.RepeatedCompositeFieldContainer[Revision]
    groups: _containers.RepeatedCompositeFieldContainer[GroupStatus]
    def __init__(self, revision: _Optional[int] = ..., programmed: _Optional[int] = ..., held: _Optional[int] = ..., applications: _Optional[int] = ..., connections: _Optional[int] = ..., connections_without_path: _Optional[int] = ..., ports: _Optional[int] = ..., ports_pending: _Optional[int] = ..., ports_failing: _Optional[int] = ..., drifts: _Optional[int] = ..., up_s: _Optional[float] = ..., levels: _Optional[int] = ..., models: _Optional[int] = ..., problems: _Optional[_Iterable[str]] = ..., listed_applications: _Optional[_Iterable[_Union[ApplicationState, _Mapping]]] = ..., listed_ports: _Optional[_Iterable[_Union[PortState, _Mapping]]] = ..., listed_revisions: _Optional[_Iterable[_Union[Revision, _Mapping]]] = ..., groups: _Optional[_Iterable[_Union[GroupStatus, _Mapping]]] = ...) -> None: ...

class GroupStatus(_message.Message):
    __slots__ = ("group", "problem", "status")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    group: str
    problem: str
    status: StatusReply
    def __init__(self, group: _Optional[str] = ..., problem: _Optional[str] = ..., status: _Optional[_Union[StatusReply, _Mapping]] = ...) -> None: ...

class GroupProblem(_message.Message):
    __slots__ = ("group", "problem")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    group: str
    problem: str
    def __init__(self, group: _Optional[str] = ..., problem: _Optional[str] = ...) -> None: ...

class Revision(_message.Message):
    __slots__ = ("revision", "at_s", "cause", "ports")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    AT_S_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    revision: int
    at_s: float
    cause: str
    ports: int
    def __init__(self, revision: _Optional[int] = ..., at_s: _Optional[float] = ..., cause: _Optional[str] = ..., ports: _Optional[int] = ...) -> None: ...

class ApplicationState(_message.Message):
    __slots__ = ("id", "name", "level", "connections", "ports", "ttl_s", "left_s", "least_share", "slowdown", "completion_s", "at_least", "owner", "job", "unit", "size_bytes", "size_source")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    LEFT_S_FIELD_NUMBER: _ClassVar[int]
    LEAST_SHARE_FIELD_NUMBER: _ClassVar[int]
    SLOWDOWN_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_S_FIELD_NUMBER: _ClassVar[int]
    AT_LEAST_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SIZE_SOURCE_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    level: int
    connections: int
    ports: int
    ttl_s: float
    left_s: float
    least_share: float
    slowdown: float
    completion_s: float
    at_least: bool
    owner: str
    job: str
    unit: str
    size_bytes: float
    size_source: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., level: _Optional[int] = ..., connections: _Optional[int] = ..., ports: _Optional[int] = ..., ttl_s: _Optional[float] = ..., left_s: _Optional[float] = ..., least_share: _Optional[float] = ..., slowdown: _Optional[float] = ..., completion_s: _Optional[float] = ..., at_least: _Optional[bool] = ..., owner: _Optional[str] = ..., job: _Optional[str] = ..., unit: _Optional[str] = ..., size_bytes: _Optional[float] = ..., size_source: _Optional[str] = ...) -> None: ...

class PortState(_message.Message):
    __slots__ = ("port", "applications", "queue_of", "weights", "state", "problem", "since_s")
    PORT_FIELD_NUMBER: _ClassVar[int]
    APPLICATIONS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OF_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    SINCE_S_FIELD_NUMBER: _ClassVar[int]
    port: PortId
    applications: int
    queue_of: _containers.RepeatedScalarFieldContainer[int]
    weights: _containers.RepeatedScalarFieldContainer[int]
    state: str
    problem: str
    since_s: float
    def __init__(self, port: _Optional[_Union[PortId, _Mapping]] = ..., applications: _Optional[int] = ..., queue_of: _Optional[_Iterable[int]] = ..., weights: _Optional[_Iterable[int]] = ..., state: _Optional[str] = ..., problem: _Optional[str] = ..., since_s: _Optional[float] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("port", "id", "connection", "groups")
    PORT_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    port: PortId
    id: str
    connection: str
    groups: bool
    def __init__(self, port: _Optional[_Union[PortId, _Mapping]] = ..., id: _Optional[str] = ..., connection: _Optional[str] = ..., groups: _Optional[bool] = ...) -> None: ...

class ExplainReply(_message.Message):
    __slots__ = ("text", "ports", "unanswered")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    UNANSWERED_FIELD_NUMBER: _ClassVar[int]
    text: str
    ports: _containers.RepeatedCompositeFieldContainer[PortAccount]
    unanswered: _containers.RepeatedCompositeFieldContainer[GroupProblem]
    def __init__(self, text: _Optional[str] = ..., ports: _Optional[_Iterable[_Union[PortAccount, _Mapping]]] = ..., unanswered: _Optional[_Iterable[_Union[GroupProblem, _Mapping]]] = ...) -> None: ...

class PortAccount(_message.Message):
    __slots__ = ("port", "units", "managed_share", "step", "gap", "queues", "applications", "group")
    PORT_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    MANAGED_SHARE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    APPLICATIONS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    port: PortId
    units: int
    managed_share: float
    step: int
    gap: float
    queues: _containers.RepeatedCompositeFieldContainer[QueueAccount]
    applications: _containers.RepeatedCompositeFieldContainer[Assigned]
    group: str
    def __init__(self, port: _Optional[_Union[PortId, _Mapping]] = ..., units: _Optional[int] = ..., managed_share: _Optional[float] = ..., step: _Optional[int] = ..., gap: _Optional[float] = ..., queues: _Optional[_Iterable[_Union[QueueAccount, _Mapping]]] = ..., applications: _Optional[_Iterable[_Union[Assigned, _Mapping]]] = ..., group: _Optional[str] = ...) -> None: ...

class QueueAccount(_message.Message):
    __slots__ = ("queue", "levels", "weight", "what")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    queue: int
    levels: _containers.RepeatedScalarFieldContainer[int]
    weight: int
    what: str
    def __init__(self, queue: _Optional[int] = ..., levels: _Optional[_Iterable[int]] = ..., weight: _Optional[int] = ..., what: _Optional[str] = ...) -> None: ...

class Assigned(_message.Message):
    __slots__ = ("id", "model", "level", "queue", "connections", "units", "share", "slowdown", "at_least", "gain", "gain_s", "least", "least_share", "size_bytes", "size_source")
    ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    SLOWDOWN_FIELD_NUMBER: _ClassVar[int]
    AT_LEAST_FIELD_NUMBER: _ClassVar[int]
    GAIN_FIELD_NUMBER: _ClassVar[int]
    GAIN_S_FIELD_NUMBER: _ClassVar[int]
    LEAST_FIELD_NUMBER: _ClassVar[int]
    LEAST_SHARE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SIZE_SOURCE_FIELD_NUMBER: _ClassVar[int]
    id: str
    model: str
    level: int
    queue: int
    connections: int
    units: int
    share: float
    slowdown: float
    at_least: bool
    gain: float
    gain_s: float
    least: PortId
    least_share: float
    size_bytes: float
    size_source: str
    def __init__(self, id: _Optional[str] = ..., model: _Optional[str] = ..., level: _Optional[int] = ..., queue: _Optional[int] = ..., connections: _Optional[int] = ..., units: _Optional[int] = ..., share: _Optional[float] = ..., slowdown: _Optional[float] = ..., at_least: _Optional[bool] = ..., gain: _Optional[float] = ..., gain_s: _Optional[float] = ..., least: _Optional[_Union[PortId, _Mapping]] = ..., least_share: _Optional[float] = ..., size_bytes: _Optional[float] = ..., size_source: _Optional[str] = ...) -> None: ...

class Pair(_message.Message):
    __slots__ = ("source", "destination")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    source: str
    destination: str
    def __init__(self, source: _Optional[str] = ..., destination: _Optional[str] = ...) -> None: ...

class NewApplication(_message.Message):
    __slots__ = ("application", "connections")
    APPLICATION_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    application: str
    connections: _containers.RepeatedCompositeFieldContainer[Pair]
    def __init__(self, application: _Optional[str] = ..., connections: _Optional[_Iterable[_Union[Pair, _Mapping]]] = ...) -> None: ...

class Proposal(_message.Message):
    __slots__ = ("register", "deregister", "recluster")
    REGISTER_FIELD_NUMBER: _ClassVar[int]
    DEREGISTER_FIELD_NUMBER: _ClassVar[int]
    RECLUSTER_FIELD_NUMBER: _ClassVar[int]
    register: _containers.RepeatedCompositeFieldContainer[NewApplication]
    deregister: _containers.RepeatedScalarFieldContainer[str]
    recluster: bool
    def __init__(self, register: _Optional[_Iterable[_Union[NewApplication, _Mapping]]] = ..., deregister: _Optional[_Iterable[str]] = ..., recluster: _Optional[bool] = ...) -> None: ...

class PlanRequest(_message.Message):
    __slots__ = ("proposal", "simulate", "groups")
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    SIMULATE_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    proposal: Proposal
    simulate: bool
    groups: bool
    def __init__(self, proposal: _Optional[_Union[Proposal, _Mapping]] = ..., simulate: _Optional[bool] = ..., groups: _Optional[bool] = ...) -> None: ...

class PlanReply(_message.Message):
    __slots__ = ("ports", "applications", "slowdown_before", "slowdown_after", "at_least_before", "at_least_after", "groups")
    PORTS_FIELD_NUMBER: _ClassVar[int]
    APPLICATIONS_FIELD_NUMBER: _ClassVar[int]
    SLOWDOWN_BEFORE_FIELD_NUMBER: _ClassVar[int]
    SLOWDOWN_AFTER_FIELD_NUMBER: _ClassVar[int]
    AT_LEAST_BEFORE_FIELD_NUMBER: _ClassVar[int]
    AT_LEAST_AFTER_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    ports: _containers.RepeatedCompositeFieldContainer[PortChange]
    applications: _containers.RepeatedCompositeFieldContainer[Forecast]
    slowdown_before: float
    slowdown_after: float
    at_least_before: bool
    at_least_after: bool
    groups: _containers.RepeatedCompositeFieldContainer[GroupPlan]
    def __init__(self, ports: _Optional[_Iterable[_Union[PortChange, _Mapping]]] = ..., applications: _Optional[_Iterable[_Union[Forecast, _Mapping]]] = ..., slowdown_before: _Optional[float] = ..., slowdown_after: _Optional[float] = ..., at_least_before: _Optional[bool] = ..., at_least_after: _Optional[bool] = ..., groups: _Optional[_Iterable[_Union[GroupPlan, _Mapping]]] = ...) -> None: ...

class GroupPlan(_message.Message):
    __slots__ = ("group", "problem", "ports")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    group: str
    problem: str
    ports: int
    def __init__(self, group: _Optional[str] = ..., problem: _Optional[str] = ..., ports: _Optional[int] = ...) -> None: ...

class PortChange(_message.Message):
    __slots__ = ("port", "queue_of_before", "weights_before", "queue_of_after", "weights_after")
    PORT_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OF_BEFORE_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_BEFORE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OF_AFTER_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_AFTER_FIELD_NUMBER: _ClassVar[int]
    port: PortId
    queue_of_before: _containers.RepeatedScalarFieldContainer[int]
    weights_before: _containers.RepeatedScalarFieldContainer[int]
    queue_of_after: _containers.RepeatedScalarFieldContainer[int]
    weights_after: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, port: _Optional[_Union[PortId, _Mapping]] = ..., queue_of_before: _Optional[_Iterable[int]] = ..., weights_before: _Optional[_Iterable[int]] = ..., queue_of_after: _Optional[_Iterable[int]] = ..., weights_after: _Optional[_Iterable[int]] = ...) -> None: ...

class Forecast(_message.Message):
    __slots__ = ("id", "application", "share_before", "share_after", "slowdown_before", "slowdown_after", "completion_before_s", "completion_after_s", "simulated_before_bps", "simulated_after_bps", "at_least_before", "at_least_after", "unit")
    ID_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_FIELD_NUMBER: _ClassVar[int]
    SHARE_BEFORE_FIELD_NUMBER: _ClassVar[int]
    SHARE_AFTER_FIELD_NUMBER: _ClassVar[int]
    SLOWDOWN_BEFORE_FIELD_NUMBER: _ClassVar[int]
    SLOWDOWN_AFTER_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_BEFORE_S_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    SIMULATED_BEFORE_BPS_FIELD_NUMBER: _ClassVar[int]
    SIMULATED_AFTER_BPS_FIELD_NUMBER: _ClassVar[int]
    AT_LEAST_BEFORE_FIELD_NUMBER: _ClassVar[int]
    AT_LEAST_AFTER_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    id: str
    application: str
    share_before: float
    share_after: float
    slowdown_before: float
    slowdown_after: float
    completion_before_s: float
    completion_after_s: float
    simulated_before_bps: float
    simulated_after_bps: float
    at_least_before: bool
    at_least_after: bool
    unit: str
    def __init__(self, id: _Optional[str] = ..., application: _Optional[str] = ..., share_before: _Optional[float] = ..., share_after: _Optional[float] = ..., slowdown_before: _Optional[float] = ..., slowdown_after: _Optional[float] = ..., completion_before_s: _Optional[float] = ..., completion_after_s: _Optional[float] = ..., simulated_before_bps: _Optional[float] = ..., simulated_after_bps: _Optional[float] = ..., at_least_before: _Optional[bool] = ..., at_least_after: _Optional[bool] = ..., unit: _Optional[str] = ...) -> None: ...

class ApplyRequest(_message.Message):
    __slots__ = ("key", "proposal", "wait_s")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    key: Key
    proposal: Proposal
    wait_s: float
    def __init__(self, key: _Optional[_Union[Key, _Mapping]] = ..., proposal: _Optional[_Union[Proposal, _Mapping]] = ..., wait_s: _Optional[float] = ...) -> None: ...

class ApplyReply(_message.Message):
    __slots__ = ("ids", "revision", "ports", "problems", "resumed")
    IDS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[str]
    revision: int
    ports: int
    problems: _containers.RepeatedCompositeFieldContainer[PortProblem]
    resumed: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, ids: _Optional[_Iterable[str]] = ..., revision: _Optional[int] = ..., ports: _Optional[int] = ..., problems: _Optional[_Iterable[_Union[PortProblem, _Mapping]]] = ..., resumed: _Optional[_Iterable[str]] = ...) -> None: ...

class PortProblem(_message.Message):
    __slots__ = ("port", "problem")
    PORT_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    port: PortId
    problem: str
    def __init__(self, port: _Optional[_Union[PortId, _Mapping]] = ..., problem: _Optional[str] = ...) -> None: ...

class RollbackRequest(_message.Message):
    __slots__ = ("key", "revision", "wait_s", "groups", "at_s")
    class GroupsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    KEY_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    AT_S_FIELD_NUMBER: _ClassVar[int]
    key: Key
    revision: int
    wait_s: float
    groups: _containers.ScalarMap[str, int]
    at_s: float
    def __init__(self, key: _Optional[_Union[Key, _Mapping]] = ..., revision: _Optional[int] = ..., wait_s: _Optional[float] = ..., groups: _Optional[_Mapping[str, int]] = ..., at_s: _Optional[float] = ...) -> None: ...

class RollbackReply(_message.Message):
    __slots__ = ("revision", "ports", "problems", "groups")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    revision: int
    ports: int
    problems: _containers.RepeatedCompositeFieldContainer[PortProblem]
    groups: _containers.RepeatedCompositeFieldContainer[GroupRollback]
    def __init__(self, revision: _Optional[int] = ..., ports: _Optional[int] = ..., problems: _Optional[_Iterable[_Union[PortProblem, _Mapping]]] = ..., groups: _Optional[_Iterable[_Union[GroupRollback, _Mapping]]] = ...) -> None: ...

class GroupRollback(_message.Message):
    __slots__ = ("group", "to", "problem", "reply")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    group: str
    to: int
    problem: str
    reply: RollbackReply
    def __init__(self, group: _Optional[str] = ..., to: _Optional[int] = ..., problem: _Optional[str] = ..., reply: _Optional[_Union[RollbackReply, _Mapping]] = ...) -> None: ...

class BackupRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BackupPart(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...
