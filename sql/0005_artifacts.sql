-- Artifacts: files that were exported from a sandbox and outlive it.
--
-- A row is pending from before the first byte is stored until the object is whole: so whoever cleans
-- up knows of every object that there may be. It is ready from then on, never written again, until
-- it is deleted. What was exported counts as usage of its sandbox, once, when it becomes ready.

ALTER TABLE state_transitions DROP CONSTRAINT state_transitions_kind_check,
    ADD CHECK (kind IN ('sandbox', 'execution', 'artifact'));
INSERT INTO state_transitions VALUES
    ('artifact', 'pending', 'ready'), ('artifact', 'pending', 'deleted'),
    ('artifact', 'ready', 'deleted');

-- As before, but a kind may begin as something else than queued: the second argument.
CREATE OR REPLACE FUNCTION check_transition() RETURNS trigger
    LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF NEW.state <> coalesce(TG_ARGV[1], 'queued') THEN
            RAISE EXCEPTION '% must begin as %, not %', TG_ARGV[0],
                coalesce(TG_ARGV[1], 'queued'), NEW.state USING ERRCODE = 'check_violation';
        END IF;
    ELSIF NEW.state <> OLD.state AND NOT EXISTS (
        SELECT FROM state_transitions t
        WHERE t.kind = TG_ARGV[0] AND t.from_state = OLD.state AND t.to_state = NEW.state) THEN
        RAISE EXCEPTION '% % may not go from % to %', TG_ARGV[0], OLD.id, OLD.state, NEW.state
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;

-- A key of an export belongs to its sandbox, like one of an execution.
ALTER TABLE idempotency_keys DROP CONSTRAINT idempotency_keys_operation_check,
    ADD CHECK (operation ~ '^(create|(exec|export):[0-9a-f-]{36})$');

CREATE TABLE artifacts (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    project_id uuid NOT NULL REFERENCES projects,
    sandbox_id uuid NOT NULL, -- no reference: it outlives the sandbox's row
    state text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'ready', 'deleted')),
    path bytea NOT NULL -- as the guest has it: any bytes but NUL
        CHECK (octet_length(path) BETWEEN 1 AND 4095 AND position('\x00'::bytea IN path) = 0),
    name text NOT NULL -- under which it is downloaded
        CHECK (length(name) BETWEEN 1 AND 255 AND name !~ '[/[:cntrl:]]'),
    mime_type text CHECK (length(mime_type) <= 255
        AND mime_type ~ '^[a-z0-9][a-z0-9!#$&^_.+-]*/[a-z0-9][a-z0-9!#$&^_.+-]*$'),
    token_id text, -- who asked; no reference: tokens may be deleted earlier
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- known, all at once, when it becomes ready
    version integer CHECK (version > 0), -- of this path of this sandbox; the trigger gives it
    size_bytes bigint CHECK (size_bytes >= 0),
    sha256 bytea CHECK (octet_length(sha256) = 32),
    ready_at timestamptz,
    expires_at timestamptz CHECK (expires_at > ready_at),
    deleted_at timestamptz,
    CHECK (num_nonnulls(version, size_bytes, sha256, ready_at, expires_at) =
        CASE state WHEN 'pending' THEN 0 WHEN 'ready' THEN 5
            ELSE CASE WHEN ready_at IS NULL THEN 0 ELSE 5 END END),
    CHECK (mime_type IS NOT NULL OR ready_at IS NULL),
    CHECK ((deleted_at IS NOT NULL) = (state = 'deleted'))
);
-- Of the path its hash: it may be longer than an index takes. Versions are never given twice, not
-- even after a deletion; the same bytes of the same path are one artifact.
CREATE UNIQUE INDEX artifacts_version ON artifacts (sandbox_id, sha256(path), version);
CREATE UNIQUE INDEX artifacts_content ON artifacts (sandbox_id, sha256(path), sha256)
    WHERE state = 'ready';
CREATE INDEX artifacts_list ON artifacts (project_id, created_at DESC, id DESC)
    WHERE state = 'ready';
CREATE INDEX artifacts_list_sandbox ON artifacts (sandbox_id, created_at DESC, id DESC)
    WHERE state = 'ready';
CREATE INDEX artifacts_pending ON artifacts (created_at) WHERE state = 'pending';
CREATE INDEX artifacts_expiry ON artifacts (expires_at) WHERE state = 'ready';

CREATE TRIGGER artifacts_transition BEFORE INSERT OR UPDATE OF state ON artifacts
    FOR EACH ROW EXECUTE FUNCTION check_transition('artifact', 'pending');

-- Gives the version, and keeps what was acknowledged as it is. (Its name is behind the other
-- trigger's: they run by name, and a step outside the table is told as such.)
CREATE FUNCTION artifact_versioned() RETURNS trigger
    LANGUAGE plpgsql AS $$
BEGIN
    IF (NEW.id, NEW.project_id, NEW.sandbox_id, NEW.path, NEW.created_at)
            IS DISTINCT FROM (OLD.id, OLD.project_id, OLD.sandbox_id, OLD.path, OLD.created_at)
        OR OLD.state <> 'pending' AND (NEW.name, NEW.mime_type, NEW.version, NEW.size_bytes,
                NEW.sha256, NEW.ready_at)
            IS DISTINCT FROM (OLD.name, OLD.mime_type, OLD.version, OLD.size_bytes, OLD.sha256,
                OLD.ready_at) THEN
        RAISE EXCEPTION 'artifact % is not to be overwritten', OLD.id
            USING ERRCODE = 'check_violation';
    END IF;
    IF OLD.state = 'pending' AND NEW.state = 'ready' THEN
        -- One at a time for each path: else two would count to the same number.
        PERFORM pg_advisory_xact_lock(hashtextextended(
            NEW.sandbox_id || encode(sha256(NEW.path), 'hex'), 0));
        SELECT coalesce(max(a.version), 0) + 1 INTO NEW.version FROM artifacts a
            WHERE a.sandbox_id = NEW.sandbox_id AND sha256(a.path) = sha256(NEW.path);
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER artifacts_versioned BEFORE UPDATE ON artifacts
    FOR EACH ROW EXECUTE FUNCTION artifact_versioned();

CREATE FUNCTION artifact_counted() RETURNS trigger
    LANGUAGE plpgsql AS $$
BEGIN
    UPDATE sandboxes SET exported_bytes = exported_bytes + NEW.size_bytes
        WHERE id = NEW.sandbox_id AND project_id = NEW.project_id;
    -- Where retention was quicker, what is left of the sandbox is its project's days.
    IF NOT FOUND THEN
        INSERT INTO usage_days AS d (project_id, day, exported_bytes)
            VALUES (NEW.project_id, (NEW.created_at AT TIME ZONE 'UTC')::date, NEW.size_bytes)
            ON CONFLICT (project_id, day) DO UPDATE
                SET exported_bytes = d.exported_bytes + EXCLUDED.exported_bytes;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER artifacts_counted AFTER UPDATE OF state ON artifacts
    FOR EACH ROW WHEN (OLD.state = 'pending' AND NEW.state = 'ready')
    EXECUTE FUNCTION artifact_counted();
