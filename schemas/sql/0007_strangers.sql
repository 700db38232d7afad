-- P-07: cards used by a container of ours that the journal, or this database, does not know are occupied and unplaceable.

ALTER TABLE gpu_grant ADD COLUMN occupied boolean NOT NULL DEFAULT false;

CREATE OR REPLACE FUNCTION gpu_hold_take() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM gpu_grant WHERE node_id = NEW.node_id AND gpu_uuid = NEW.gpu_uuid AND granted AND NOT occupied) THEN
        RAISE EXCEPTION 'card % is not granted on node %, or occupied', NEW.gpu_uuid, NEW.node_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'gpu_hold_granted';
    END IF;
    RETURN NEW;
END $$;
