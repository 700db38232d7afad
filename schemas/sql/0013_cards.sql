-- Cards by UUID: a grant may have no index (granted by UUID, or its index is another card's now), and an index is bound
-- anew only by an operator's audited act. A card that is put aside takes no new work (L-D1, L-D12, L-D13).

ALTER TABLE gpu_grant DROP CONSTRAINT gpu_grant_index;
ALTER TABLE gpu_grant ALTER COLUMN idx DROP NOT NULL;
ALTER TABLE gpu_grant ADD CONSTRAINT gpu_grant_index UNIQUE (node_id, idx);
DROP TRIGGER gpu_grant_uuid_fixed ON gpu_grant;
CREATE TRIGGER gpu_grant_uuid_fixed BEFORE UPDATE OF gpu_uuid, node_id ON gpu_grant FOR EACH ROW
    WHEN ((OLD.gpu_uuid, OLD.node_id) IS DISTINCT FROM (NEW.gpu_uuid, NEW.node_id))
    EXECUTE FUNCTION refuse_change('gpu_grant_uuid_fixed');
CREATE TRIGGER gpu_grant_index_fixed BEFORE UPDATE OF idx ON gpu_grant FOR EACH ROW
    WHEN (OLD.idx IS NOT NULL AND NEW.idx IS DISTINCT FROM OLD.idx
        AND current_setting('tuneplane.rebinding', true) IS DISTINCT FROM NEW.node_id)
    EXECUTE FUNCTION refuse_change('gpu_grant_index_fixed');

ALTER TABLE node ADD COLUMN accepted_cards text NOT NULL DEFAULT '';  -- for the next Welcome

CREATE TABLE card_cordon (
    node_id  text NOT NULL,
    gpu_uuid text NOT NULL,
    owner    text NOT NULL CHECK (owner IN ('operator', 'health')),
    reason   text NOT NULL,
    since    timestamptz NOT NULL,
    PRIMARY KEY (node_id, gpu_uuid, owner),  -- L-F4: each owner lifts only its own
    CONSTRAINT card_cordon_grant FOREIGN KEY (node_id, gpu_uuid) REFERENCES gpu_grant (node_id, gpu_uuid)
);

ALTER TABLE cordon DROP CONSTRAINT cordon_owner_check;
ALTER TABLE cordon ADD CONSTRAINT cordon_owner_check
    CHECK (owner IN ('operator', 'storage', 'journal', 'cards', 'machine', 'updater', 'health'));

CREATE OR REPLACE FUNCTION gpu_hold_take() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM gpu_grant WHERE node_id = NEW.node_id AND gpu_uuid = NEW.gpu_uuid AND granted AND NOT occupied)
        OR EXISTS (SELECT FROM card_cordon WHERE node_id = NEW.node_id AND gpu_uuid = NEW.gpu_uuid)
    THEN
        RAISE EXCEPTION 'card % is not granted on node %, occupied, or cordoned', NEW.gpu_uuid, NEW.node_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'gpu_hold_granted';
    END IF;
    RETURN NEW;
END $$;
