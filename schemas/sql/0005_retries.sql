-- Another attempt of a job: only after evidence for the last one, never after a stop (R-LCH-12, P-11).

ALTER TABLE job
    ADD COLUMN attempt_number integer NOT NULL DEFAULT 0,  -- of the latest attempt; 0: not placed yet
    ADD COLUMN not_before timestamptz;                     -- the next attempt waits for this (back-off)
UPDATE job SET attempt_number = (SELECT coalesce(max(number), 0) FROM attempt WHERE job_id = job.id);

-- Since when a gateway has lived without a gap: silence before that is nobody's fault but ours (P-16, L-B8)
ALTER TABLE gateway ADD COLUMN live_since timestamptz;
UPDATE gateway SET live_since = started_at;
ALTER TABLE gateway ALTER COLUMN live_since SET NOT NULL;

-- A failed job may be queued again, and nothing else leaves a final state
DROP TRIGGER job_final ON job;
CREATE TRIGGER job_final BEFORE UPDATE OF state ON job FOR EACH ROW
    WHEN (OLD.state IN ('succeeded', 'failed', 'stopped') AND NEW.state IS DISTINCT FROM OLD.state
        AND NOT (OLD.state = 'failed' AND NEW.state = 'queued'))
    EXECUTE FUNCTION refuse_change('job_final');
CREATE TRIGGER job_queued_after_stop BEFORE UPDATE OF state ON job FOR EACH ROW
    WHEN (NEW.state = 'queued' AND OLD.state <> 'queued' AND NEW.stop_asked_at IS NOT NULL)
    EXECUTE FUNCTION refuse_change('job_queued_after_stop');

CREATE FUNCTION job_queued_after_evidence() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM attempt WHERE job_id = NEW.id AND state <> 'ended') THEN
        RAISE EXCEPTION 'job % has an attempt that has not ended', NEW.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'job_queued_after_evidence';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER job_queued_after_evidence BEFORE UPDATE OF state ON job FOR EACH ROW
    WHEN (NEW.state = 'queued' AND OLD.state <> 'queued') EXECUTE FUNCTION job_queued_after_evidence();

-- An attempt ends with evidence for all its members
CREATE FUNCTION attempt_ended_by_evidence() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM member WHERE attempt_id = NEW.id AND phase NOT IN ('terminated', 'aborted')) THEN
        RAISE EXCEPTION 'attempt % has a member without evidence of its end', NEW.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'attempt_ended_by_evidence';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER attempt_ended_by_evidence BEFORE UPDATE OF state ON attempt FOR EACH ROW
    WHEN (NEW.state = 'ended' AND OLD.state <> 'ended') EXECUTE FUNCTION attempt_ended_by_evidence();

-- ... and another follows it, in turn, unless somebody asked to stop (attempt_one_live sees to the former one)
CREATE FUNCTION attempt_follows() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM job WHERE id = NEW.job_id AND stop_asked_at IS NOT NULL) THEN
        RAISE EXCEPTION 'job % was asked to stop', NEW.job_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'attempt_after_stop';
    END IF;
    IF NEW.number <> (SELECT count(*) FROM attempt WHERE job_id = NEW.job_id) THEN
        RAISE EXCEPTION 'attempt % does not follow the last one', NEW.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'attempt_follows';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER attempt_follows AFTER INSERT ON attempt FOR EACH ROW EXECUTE FUNCTION attempt_follows();
