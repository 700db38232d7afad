-- Projects and their members, console sessions, and how the audit log is read (R-ADM-01, R-ADM-02).

CREATE TABLE project (
    id         text PRIMARY KEY,
    created_at timestamptz NOT NULL
);

CREATE TABLE project_member (
    project_id text NOT NULL REFERENCES project,
    username   text NOT NULL REFERENCES account,
    added_at   timestamptz NOT NULL,
    PRIMARY KEY (username, project_id)  -- asked at every request: whose member is this user?
);
CREATE INDEX project_member_of ON project_member (project_id);

-- Fleets named projects before there were any
INSERT INTO project (id, created_at) SELECT project, min(created_at) FROM fleet WHERE project IS NOT NULL GROUP BY project;

-- A row is a live session until it expires; whatever ends it deletes it, for every API process at once.
CREATE TABLE console_session (
    id         text PRIMARY KEY,
    username   text NOT NULL REFERENCES account,
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL
);
CREATE INDEX console_session_owner ON console_session (username, created_at DESC);

CREATE INDEX audit_actor ON audit (actor, sequence DESC);
CREATE INDEX audit_subject ON audit (subject, sequence DESC);
CREATE INDEX audit_action ON audit (action, sequence DESC);
CREATE INDEX job_newest_of_project ON job (project, created_at DESC, id DESC);
