-- Jobs, attempts, members, holds, commands and timelines.

CREATE TABLE job (
    id              text PRIMARY KEY,
    name            text NOT NULL,
    project         text NOT NULL,
    owner           text NOT NULL,
    fleet_id        text NOT NULL,  -- R-FLT-09: fixed at admission
    spec            json NOT NULL,
    image           text NOT NULL,
    trace           text NOT NULL,
    priority        integer NOT NULL,
    idempotency_key text,
    state           text NOT NULL DEFAULT 'queued'
        CHECK (state IN ('queued', 'preparing', 'starting', 'running', 'stopping', 'succeeded', 'failed', 'stopped')),
    created_at      timestamptz NOT NULL,
    ended_at        timestamptz,
    stop_asked_at   timestamptz,
    stop_asked_by   text NOT NULL DEFAULT '',
    waiting_code    text,
    waiting_reasons json,
    waiting_since   timestamptz,
    reason_code     text NOT NULL DEFAULT '',
    reason_detail   text NOT NULL DEFAULT '',
    live_fleet_id   text GENERATED ALWAYS AS (CASE WHEN ended_at IS NULL THEN fleet_id END) STORED,
    CONSTRAINT job_fleet FOREIGN KEY (live_fleet_id) REFERENCES fleet (id),  -- R-FLT-06
    CONSTRAINT job_submission UNIQUE (owner, idempotency_key),
    CONSTRAINT job_ended CHECK ((ended_at IS NOT NULL) = (state IN ('succeeded', 'failed', 'stopped')))
);
CREATE INDEX job_waiting ON job (priority DESC, created_at, id) WHERE state = 'queued';
CREATE INDEX job_newest ON job (created_at DESC, id DESC);
CREATE INDEX job_live_fleet ON job (live_fleet_id);

CREATE TRIGGER job_stop_for_ever BEFORE UPDATE OF stop_asked_at ON job FOR EACH ROW
    WHEN (OLD.stop_asked_at IS NOT NULL AND NEW.stop_asked_at IS DISTINCT FROM OLD.stop_asked_at)
    EXECUTE FUNCTION refuse_change('job_stop_for_ever');  -- R-LCH-12
CREATE TRIGGER job_fixed BEFORE UPDATE OF fleet_id, spec, image, owner ON job FOR EACH ROW
    WHEN ((OLD.fleet_id, OLD.spec::text, OLD.image, OLD.owner) IS DISTINCT FROM (NEW.fleet_id, NEW.spec::text, NEW.image, NEW.owner))
    EXECUTE FUNCTION refuse_change('job_fixed');
CREATE TRIGGER job_final BEFORE UPDATE OF state ON job FOR EACH ROW
    WHEN (OLD.state IN ('succeeded', 'failed', 'stopped') AND NEW.state IS DISTINCT FROM OLD.state)
    EXECUTE FUNCTION refuse_change('job_final');

CREATE TABLE attempt (
    id           text PRIMARY KEY,
    job_id       text NOT NULL REFERENCES job,
    number       integer NOT NULL CHECK (number > 0),
    state        text NOT NULL DEFAULT 'pending'
        CHECK (state IN ('pending', 'preparing', 'committed', 'running', 'stopping', 'ended')),
    created_at   timestamptz NOT NULL,
    entered_at   timestamptz NOT NULL,
    running_at   timestamptz,
    ended_at     timestamptz,
    cause_code   text NOT NULL DEFAULT '',
    cause_detail text NOT NULL DEFAULT '',
    claim_worker text,
    claim_epoch  bigint NOT NULL DEFAULT 0,
    claim_until  timestamptz,
    CONSTRAINT attempt_number UNIQUE (job_id, number),
    CONSTRAINT attempt_ended CHECK ((ended_at IS NOT NULL) = (state = 'ended'))
);
CREATE UNIQUE INDEX attempt_one_live ON attempt (job_id) WHERE state <> 'ended';
CREATE INDEX attempt_claimable ON attempt (claim_until NULLS FIRST, created_at) WHERE state <> 'ended';
CREATE INDEX attempt_over ON attempt (ended_at) WHERE state = 'ended';

-- A claim epoch only rises (P-05), and the commit is decided once: a state is never taken back
CREATE FUNCTION attempt_rank(state text) RETURNS integer LANGUAGE sql IMMUTABLE AS $$
    SELECT array_position(ARRAY['pending', 'preparing', 'committed', 'running', 'stopping', 'ended'], state)
$$;
CREATE TRIGGER attempt_forward BEFORE UPDATE ON attempt FOR EACH ROW
    WHEN (NEW.claim_epoch < OLD.claim_epoch OR attempt_rank(NEW.state) < attempt_rank(OLD.state))
    EXECUTE FUNCTION refuse_change('attempt_forward');

CREATE TABLE member (
    id              text PRIMARY KEY,
    attempt_id      text NOT NULL REFERENCES attempt,
    node_id         text NOT NULL REFERENCES node,
    rank            integer NOT NULL CHECK (rank >= 0),
    plan            bytea NOT NULL,
    plan_digest     text NOT NULL,
    phase           text NOT NULL DEFAULT 'pending' CHECK (phase IN
        ('pending', 'preparing', 'prepared', 'starting', 'running', 'stopping', 'terminated', 'aborted', 'unknown')),
    revision        bigint NOT NULL DEFAULT 0,  -- of the latest observation applied (R-LCH-05)
    boot_id         text NOT NULL DEFAULT '',
    container_id    text NOT NULL DEFAULT '',
    exit_code       integer,
    oom_killed      boolean NOT NULL DEFAULT false,
    reason_code     text NOT NULL DEFAULT '',
    reason_detail   text NOT NULL DEFAULT '',
    refusal_code    text NOT NULL DEFAULT '',  -- why the Node refused a command; becomes the reason of the abort
    refusal_detail  text NOT NULL DEFAULT '',
    progress        json,
    hold_expires_at timestamptz,
    started_at      timestamptz,
    ended_at        timestamptz,
    cleaned         boolean NOT NULL DEFAULT false,
    CONSTRAINT member_rank UNIQUE (attempt_id, rank),
    CONSTRAINT member_node UNIQUE (id, node_id)
);
CREATE INDEX member_on_node ON member (node_id) WHERE phase NOT IN ('terminated', 'aborted');

CREATE TRIGGER member_plan_fixed BEFORE UPDATE OF attempt_id, node_id, rank, plan, plan_digest ON member FOR EACH ROW
    WHEN ((OLD.attempt_id, OLD.node_id, OLD.rank, OLD.plan, OLD.plan_digest)
        IS DISTINCT FROM (NEW.attempt_id, NEW.node_id, NEW.rank, NEW.plan, NEW.plan_digest))
    EXECUTE FUNCTION refuse_change('member_plan_fixed');  -- R-LCH-01
CREATE TRIGGER member_ended BEFORE UPDATE OF phase ON member FOR EACH ROW
    WHEN (OLD.phase IN ('terminated', 'aborted') AND NEW.phase IS DISTINCT FROM OLD.phase)
    EXECUTE FUNCTION refuse_change('member_ended');

-- Holds. Release deletes the row; history is in the timeline.

CREATE TABLE resource_hold (
    member_id     text PRIMARY KEY,
    node_id       text NOT NULL REFERENCES node_capacity,
    cpu_millis    bigint NOT NULL CHECK (cpu_millis >= 0),
    memory_bytes  bigint NOT NULL CHECK (memory_bytes >= 0),
    staging_bytes bigint NOT NULL DEFAULT 0 CHECK (staging_bytes >= 0),
    CONSTRAINT resource_hold_member FOREIGN KEY (member_id, node_id) REFERENCES member (id, node_id)
);
CREATE INDEX resource_hold_node ON resource_hold (node_id);

CREATE TABLE gpu_hold (
    gpu_uuid  text PRIMARY KEY,  -- one holder a card, even when its machine was enrolled again
    member_id text NOT NULL,
    node_id   text NOT NULL,
    CONSTRAINT gpu_hold_grant FOREIGN KEY (node_id, gpu_uuid) REFERENCES gpu_grant (node_id, gpu_uuid),
    CONSTRAINT gpu_hold_member FOREIGN KEY (member_id, node_id) REFERENCES member (id, node_id)
);
CREATE INDEX gpu_hold_of_member ON gpu_hold (member_id);
CREATE INDEX gpu_hold_node ON gpu_hold (node_id);

CREATE TABLE port_hold (
    node_id   text NOT NULL,
    port      integer NOT NULL CHECK (port BETWEEN 1 AND 65535),
    member_id text NOT NULL,
    PRIMARY KEY (node_id, port),
    CONSTRAINT port_hold_member FOREIGN KEY (member_id, node_id) REFERENCES member (id, node_id)
);
CREATE INDEX port_hold_of_member ON port_hold (member_id);

CREATE FUNCTION resource_hold_take() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE node_capacity SET
        cpu_millis_used = cpu_millis_used + NEW.cpu_millis,
        memory_bytes_used = memory_bytes_used + NEW.memory_bytes,
        staging_bytes_used = staging_bytes_used + NEW.staging_bytes
    WHERE node_id = NEW.node_id
        AND cpu_millis_used + NEW.cpu_millis <= cpu_millis_budget
        AND memory_bytes_used + NEW.memory_bytes <= memory_bytes_budget
        AND staging_bytes_used + NEW.staging_bytes <= staging_bytes_budget;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'node % has not enough left of its budgets', NEW.node_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'node_capacity_budget';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER resource_hold_take BEFORE INSERT ON resource_hold FOR EACH ROW EXECUTE FUNCTION resource_hold_take();

CREATE FUNCTION resource_hold_give() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE node_capacity SET
        cpu_millis_used = cpu_millis_used - OLD.cpu_millis,
        memory_bytes_used = memory_bytes_used - OLD.memory_bytes,
        staging_bytes_used = staging_bytes_used - OLD.staging_bytes
    WHERE node_id = OLD.node_id;
    RETURN OLD;
END $$;
CREATE TRIGGER resource_hold_give AFTER DELETE ON resource_hold FOR EACH ROW EXECUTE FUNCTION resource_hold_give();

CREATE FUNCTION gpu_hold_take() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM gpu_grant WHERE node_id = NEW.node_id AND gpu_uuid = NEW.gpu_uuid AND granted) THEN
        RAISE EXCEPTION 'card % is not granted on node %', NEW.gpu_uuid, NEW.node_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'gpu_hold_granted';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER gpu_hold_take BEFORE INSERT ON gpu_hold FOR EACH ROW EXECUTE FUNCTION gpu_hold_take();

CREATE TRIGGER resource_hold_fixed BEFORE UPDATE ON resource_hold FOR EACH ROW EXECUTE FUNCTION refuse_change('hold_fixed');
CREATE TRIGGER gpu_hold_fixed BEFORE UPDATE ON gpu_hold FOR EACH ROW EXECUTE FUNCTION refuse_change('hold_fixed');
CREATE TRIGGER port_hold_fixed BEFORE UPDATE ON port_hold FOR EACH ROW EXECUTE FUNCTION refuse_change('hold_fixed');

CREATE TABLE command (
    operation          text PRIMARY KEY,  -- deterministic: a repeat is the same row (R-LCH-02)
    member_id          text NOT NULL,
    node_id            text NOT NULL,
    kind               text NOT NULL CHECK (kind IN ('prepare', 'commit', 'stop', 'forget')),
    claim_epoch        bigint NOT NULL,
    hold_seconds       double precision NOT NULL DEFAULT 0,
    stop_signal        text NOT NULL DEFAULT '',
    stop_grace_seconds double precision NOT NULL DEFAULT 0,
    reason             text NOT NULL DEFAULT '',
    trace              text NOT NULL,
    created_at         timestamptz NOT NULL,
    sent_epoch         bigint,
    sent_at            timestamptz,
    answered_at        timestamptz,
    accepted           boolean,
    code               text NOT NULL DEFAULT '',
    detail             text NOT NULL DEFAULT '',
    withdrawn_at       timestamptz,
    CONSTRAINT command_member FOREIGN KEY (member_id, node_id) REFERENCES member (id, node_id),
    CONSTRAINT command_answer CHECK ((answered_at IS NULL) = (accepted IS NULL)),
    -- nothing is sent after it was withdrawn (R-LCH-12): a withdrawn command keeps the send it had
    CONSTRAINT command_sent CHECK ((sent_at IS NULL) = (sent_epoch IS NULL))
);
CREATE INDEX command_open ON command (node_id) WHERE answered_at IS NULL AND withdrawn_at IS NULL;
CREATE INDEX command_of_member ON command (member_id);
CREATE TRIGGER command_withdrawn BEFORE UPDATE OF sent_epoch ON command FOR EACH ROW
    WHEN (OLD.withdrawn_at IS NOT NULL AND NEW.sent_epoch IS DISTINCT FROM OLD.sent_epoch)
    EXECUTE FUNCTION refuse_change('command_withdrawn');

CREATE TABLE timeline (
    sequence bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id   text NOT NULL REFERENCES job,
    at       timestamptz NOT NULL,
    kind     text NOT NULL,
    subject  text NOT NULL,
    detail   text NOT NULL DEFAULT ''
);
CREATE INDEX timeline_of_job ON timeline (job_id, sequence);
