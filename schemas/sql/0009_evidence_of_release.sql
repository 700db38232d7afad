-- A hold ends with evidence only (R-LCH-03, P-11): what releases it has recorded the member's end before, in its transaction.

CREATE FUNCTION hold_released() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM member WHERE id = OLD.member_id AND phase NOT IN ('terminated', 'aborted')) THEN
        RAISE EXCEPTION 'member % has not ended, and holds what it holds', OLD.member_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'hold_released_by_evidence';
    END IF;
    RETURN OLD;
END $$;
CREATE TRIGGER resource_hold_released BEFORE DELETE ON resource_hold FOR EACH ROW EXECUTE FUNCTION hold_released();
CREATE TRIGGER gpu_hold_released BEFORE DELETE ON gpu_hold FOR EACH ROW EXECUTE FUNCTION hold_released();
CREATE TRIGGER port_hold_released BEFORE DELETE ON port_hold FOR EACH ROW EXECUTE FUNCTION hold_released();

-- What a complete report is compared with, in every session of every Node: found without reading the members of the others
CREATE INDEX member_unsettled ON member (node_id) WHERE phase NOT IN ('terminated', 'aborted') OR NOT cleaned;
DROP INDEX member_on_node;  -- the new one has all its rows
CREATE INDEX member_of_node ON member (node_id);  -- whom a doubted journal may remember
