-- P-07: an operator's stop of what this database does not know as a member, and the Forget that follows it.

CREATE TABLE stranger_command (
    operation    text PRIMARY KEY,
    node_id      text NOT NULL REFERENCES node,
    member       text NOT NULL,  -- as the container's label says
    container_id text NOT NULL,
    kind         text NOT NULL CHECK (kind IN ('stop', 'forget')),
    asked_by     text NOT NULL,
    created_at   timestamptz NOT NULL,
    sent_epoch   bigint,
    answered_at  timestamptz,
    accepted     boolean,
    code         text NOT NULL DEFAULT ''
);
CREATE INDEX stranger_command_open ON stranger_command (node_id) WHERE answered_at IS NULL;
