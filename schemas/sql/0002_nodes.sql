-- Machines: enrolment, credentials, sessions, inventory, capacity and cards.

CREATE TABLE node (
    id                    text PRIMARY KEY,
    fleet_id              text NOT NULL,
    address               text NOT NULL,
    state                 text NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'draining', 'cordoned')),
    created_at            timestamptz NOT NULL,
    enrolled_by           text,
    removed_at            timestamptz,
    -- P-02, P-12: what the Node last said of its journal
    journal_id            text,
    journal_sequence      bigint NOT NULL DEFAULT 0,
    inventory             json,
    inventory_digest      text,
    inventory_observed_at timestamptz,
    inventory_epoch       bigint NOT NULL DEFAULT 0,  -- the session that confirmed it; 0: none, or gone stale
    -- R-FLT-06: a Fleet with enrolled Nodes cannot be deleted; a removed Node does not hold it
    live_fleet_id         text GENERATED ALWAYS AS (CASE WHEN removed_at IS NULL THEN fleet_id END) STORED,
    CONSTRAINT node_fleet FOREIGN KEY (live_fleet_id) REFERENCES fleet (id)
);
CREATE INDEX node_of_fleet ON node (fleet_id, created_at DESC, id DESC);
CREATE INDEX node_live_fleet ON node (live_fleet_id);

CREATE TABLE join_token (
    id            text PRIMARY KEY,
    fleet_id      text NOT NULL REFERENCES fleet ON DELETE CASCADE,
    secret_hash   text NOT NULL UNIQUE,
    created_by    text NOT NULL,
    created_at    timestamptz NOT NULL,
    expires_at    timestamptz NOT NULL,
    revoked_at    timestamptz,
    used_at       timestamptz,
    used_by       text UNIQUE REFERENCES node,        -- R-ENR-01: single use
    join_key_hash text,
    try_ordinal   integer NOT NULL DEFAULT 0,         -- P-14: lower ordinals are refused
    CONSTRAINT join_token_used CHECK ((used_at IS NULL) = (used_by IS NULL) AND (used_by IS NULL) = (join_key_hash IS NULL))
);
CREATE INDEX join_token_fleet ON join_token (fleet_id, created_at DESC);

-- P-18: rows are never deleted because a clock passed
CREATE TABLE credential (
    secret_hash text PRIMARY KEY,
    node_id     text NOT NULL REFERENCES node,
    created_at  timestamptz NOT NULL,
    expires_at  timestamptz NOT NULL,
    revoked_at  timestamptz
);
CREATE INDEX credential_node ON credential (node_id);

CREATE TABLE cordon (
    node_id text NOT NULL REFERENCES node,
    owner   text NOT NULL CHECK (owner IN ('operator', 'storage', 'journal', 'cards')),
    reason  text NOT NULL,
    since   timestamptz NOT NULL,
    PRIMARY KEY (node_id, owner)  -- L-F4: each owner lifts only its own
);

CREATE TABLE gateway (
    id          text PRIMARY KEY,
    host        text NOT NULL,
    port        integer NOT NULL CHECK (port BETWEEN 1 AND 65535),
    started_at  timestamptz NOT NULL,
    lease_until timestamptz NOT NULL
);

-- One row a Node: its latest session. Live: open here, and the gateway's lease is fresh.
CREATE TABLE session (
    node_id              text PRIMARY KEY REFERENCES node,
    epoch                bigint NOT NULL CHECK (epoch > 0),
    gateway_id           text NOT NULL,
    machine_id           text NOT NULL,
    boot_id              text NOT NULL,
    opened_at            timestamptz NOT NULL,
    closed_at            timestamptz,
    close_reason         text NOT NULL DEFAULT '',
    clock_offset_seconds double precision NOT NULL
);
CREATE INDEX session_gateway ON session (gateway_id) WHERE closed_at IS NULL;

-- R-SES-02: the epoch only rises
CREATE TRIGGER session_epoch_rises BEFORE UPDATE OF epoch ON session FOR EACH ROW
    WHEN (NEW.epoch < OLD.epoch) EXECUTE FUNCTION refuse_change('session_epoch_rises');

-- What the operator granted (NULL: not declared, so nothing fits) and what is held. Budgets may shrink below use:
-- that must not wedge an inventory, so the limit is checked where a hold is taken.
CREATE TABLE node_capacity (
    node_id              text PRIMARY KEY REFERENCES node,
    cpu_millis_budget    bigint,
    memory_bytes_budget  bigint,
    staging_bytes_budget bigint NOT NULL DEFAULT 0,
    gpus_declared        boolean NOT NULL DEFAULT false,
    cpu_millis_used      bigint NOT NULL DEFAULT 0 CHECK (cpu_millis_used >= 0),
    memory_bytes_used    bigint NOT NULL DEFAULT 0 CHECK (memory_bytes_used >= 0),
    staging_bytes_used   bigint NOT NULL DEFAULT 0 CHECK (staging_bytes_used >= 0)
);

-- Which card an index means on a Node, once and for all. Unique both ways; rebinding is an audited act.
CREATE TABLE gpu_grant (
    node_id  text NOT NULL REFERENCES node,
    idx      integer NOT NULL CHECK (idx >= 0),
    gpu_uuid text NOT NULL,
    granted  boolean NOT NULL,  -- in the declared budget and seen in the latest inventory
    CONSTRAINT gpu_grant_index PRIMARY KEY (node_id, idx),
    CONSTRAINT gpu_grant_card UNIQUE (node_id, gpu_uuid)
);
CREATE TRIGGER gpu_grant_uuid_fixed BEFORE UPDATE OF gpu_uuid, idx, node_id ON gpu_grant FOR EACH ROW
    WHEN ((OLD.gpu_uuid, OLD.idx, OLD.node_id) IS DISTINCT FROM (NEW.gpu_uuid, NEW.idx, NEW.node_id))
    EXECUTE FUNCTION refuse_change('gpu_grant_uuid_fixed');
