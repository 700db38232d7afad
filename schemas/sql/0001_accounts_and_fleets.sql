-- Accounts, tokens, the audit log, Fleets, TLS identities.

CREATE TABLE account (
    username      text PRIMARY KEY,
    role          text NOT NULL CHECK (role IN ('admin', 'user')),
    password_hash text,
    disabled      boolean NOT NULL DEFAULT false,
    created_at    timestamptz NOT NULL
);

CREATE TABLE api_token (
    id           text PRIMARY KEY,
    username     text NOT NULL REFERENCES account,
    name         text NOT NULL,
    secret_hash  text NOT NULL UNIQUE,
    created_at   timestamptz NOT NULL,
    last_used_at timestamptz,
    revoked_at   timestamptz
);
CREATE INDEX api_token_owner ON api_token (username);

CREATE TABLE audit (
    sequence bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at       timestamptz NOT NULL,
    actor    text NOT NULL,
    action   text NOT NULL,
    subject  text NOT NULL,
    detail   text NOT NULL,
    forced   boolean NOT NULL
);

CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% of % is refused', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'check_violation', CONSTRAINT = TG_ARGV[0];
END $$;

CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE ON audit
    FOR EACH ROW EXECUTE FUNCTION refuse_change('audit_append_only');
CREATE TRIGGER audit_not_truncated BEFORE TRUNCATE ON audit
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change('audit_append_only');

CREATE TABLE fleet (
    id           text PRIMARY KEY,
    kind         text NOT NULL CHECK (kind IN ('node', 'kubernetes', 'slurm')),
    delivery     text NOT NULL CHECK (delivery IN ('shared-mount', 'object-pull')),
    capabilities text[] NOT NULL CHECK (capabilities <@ ARRAY['train', 'eval', 'serve', 'env']),
    visibility   text NOT NULL CHECK (visibility IN ('public', 'project')),
    project      text,
    state        text NOT NULL CHECK (state IN ('active', 'draining', 'disabled')),
    config       json NOT NULL,
    created_at   timestamptz NOT NULL,
    CONSTRAINT fleet_project CHECK (visibility = 'public' OR project IS NOT NULL)
);

-- R-FLT-02: what a Fleet is never changes
CREATE TRIGGER fleet_kind_fixed BEFORE UPDATE OF kind, delivery ON fleet FOR EACH ROW
    WHEN (OLD.kind IS DISTINCT FROM NEW.kind OR OLD.delivery IS DISTINCT FROM NEW.delivery)
    EXECUTE FUNCTION refuse_change('fleet_kind_fixed');

CREATE TABLE tls_identity (
    name            text PRIMARY KEY,
    certificate_pem text NOT NULL,
    key_ciphertext  bytea NOT NULL,
    version         integer NOT NULL,
    key_id          text NOT NULL
);
