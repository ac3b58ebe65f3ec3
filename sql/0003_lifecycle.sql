-- A sandbox's whole life: changed deadlines, cancelled executions, policy, history, usage,
-- audit, retention, and the fencing of nodes that fell silent.

-- Policy -------------------------------------------------------------------------------

-- Limits of one project; an absent member sets none. The handlers admit only these members, with
-- these types (common/policy.c).
ALTER TABLE projects ADD COLUMN policy jsonb NOT NULL DEFAULT '{}'
    CHECK (jsonb_typeof(policy) = 'object' AND policy - ARRAY['maxSandboxes', 'maxTtlSeconds',
        'defaultTtlSeconds', 'maxIdleSeconds', 'defaultIdleSeconds', 'maxCpus', 'maxMemoryMb',
        'maxWorkspaceMb', 'maxPids', 'egressModes', 'templates'] = '{}');
UPDATE projects SET policy = jsonb_build_object('maxSandboxes', max_sandboxes)
    WHERE max_sandboxes IS NOT NULL;
ALTER TABLE projects DROP COLUMN max_sandboxes;

-- History, usage -----------------------------------------------------------------------

CREATE TABLE sandbox_events (
    sandbox_id uuid NOT NULL REFERENCES sandboxes ON DELETE CASCADE,
    seq integer NOT NULL,
    at timestamptz NOT NULL,
    state text NOT NULL,
    reason end_reason,
    PRIMARY KEY (sandbox_id, seq)
);

-- When a guest was there for its client. One is open at most; they never overlap.
CREATE TABLE usage_intervals (
    sandbox_id uuid NOT NULL REFERENCES sandboxes ON DELETE CASCADE,
    seq integer NOT NULL,
    kind text NOT NULL CHECK (kind IN ('running', 'paused')),
    begun_at timestamptz NOT NULL,
    ended_at timestamptz CHECK (ended_at >= begun_at),
    PRIMARY KEY (sandbox_id, seq)
);
CREATE UNIQUE INDEX usage_intervals_open ON usage_intervals (sandbox_id) WHERE ended_at IS NULL;

-- What is left of sandboxes whose rows were deleted; by the day (UTC) of their admission.
CREATE TABLE usage_days (
    project_id uuid NOT NULL REFERENCES projects ON DELETE CASCADE,
    day date NOT NULL,
    sandboxes bigint NOT NULL DEFAULT 0,
    executions bigint NOT NULL DEFAULT 0,
    runtime_ms bigint NOT NULL DEFAULT 0,
    paused_ms bigint NOT NULL DEFAULT 0,
    cpu_us bigint NOT NULL DEFAULT 0,
    memory_mb_ms numeric NOT NULL DEFAULT 0,
    exported_bytes bigint NOT NULL DEFAULT 0,
    network_bytes bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (project_id, day)
);

ALTER TABLE sandboxes
    ADD COLUMN active_at timestamptz, -- activity that is no execution (CPU use, a changed limit)
    ADD COLUMN cpu_us bigint NOT NULL DEFAULT 0 CHECK (cpu_us >= 0), -- as last measured
    ADD COLUMN exported_bytes bigint NOT NULL DEFAULT 0 CHECK (exported_bytes >= 0),
    ADD COLUMN network_bytes bigint NOT NULL DEFAULT 0 CHECK (network_bytes >= 0);
ALTER TABLE executions
    ADD COLUMN cancel_requested_at timestamptz,
    ADD COLUMN oom_killed boolean NOT NULL DEFAULT false,
    ADD COLUMN output_expired boolean NOT NULL DEFAULT false,
    ADD CHECK (NOT oom_killed OR state = 'failed'),
    ADD CHECK (NOT output_expired OR ended_at IS NOT NULL);
CREATE INDEX sandboxes_ended ON sandboxes (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX executions_output ON executions (ended_at)
    WHERE ended_at IS NOT NULL AND NOT output_expired;
-- Every execution of a sandbox, for its idle time and its usage.
CREATE INDEX executions_sandbox_ended ON executions (sandbox_id, ended_at);
CREATE INDEX sandboxes_day ON sandboxes (project_id, ((created_at AT TIME ZONE 'UTC')::date));

-- Audit --------------------------------------------------------------------------------

CREATE DOMAIN audit_action AS text CHECK (VALUE IN (
    'project.create', 'project.policy', 'project.disable', 'project.enable',
    'token.create', 'token.revoke', 'sandbox.create', 'sandbox.update', 'sandbox.terminate',
    'sandbox.end', 'execution.create', 'execution.cancel', 'execution.end'));

-- Who did what to which resource; never content. No references: it outlives what it names.
CREATE TABLE audit (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    project_id uuid,
    action audit_action NOT NULL,
    token_id text,
    address text,   -- of the client
    request_id text,
    sandbox_id uuid,
    execution_id uuid,
    detail jsonb
);
-- Newest first, whatever is filtered by: a page never costs a walk through a year.
CREATE INDEX audit_project ON audit (project_id, at, id);
CREATE INDEX audit_project_action ON audit (project_id, action, at, id);
CREATE INDEX audit_at ON audit (at, id);

-- p_who: {token, address, request} of a request; null for what the service does by itself.
CREATE FUNCTION audit_add(p_project uuid, p_who jsonb, p_action text, p_sandbox uuid,
    p_execution uuid, p_detail jsonb) RETURNS void
    LANGUAGE sql
    BEGIN ATOMIC
        INSERT INTO audit (project_id, action, token_id, address, request_id, sandbox_id,
                execution_id, detail)
            VALUES (p_project, p_action, p_who->>'token', p_who->>'address', p_who->>'request',
                p_sandbox, p_execution, p_detail);
    END;

CREATE FUNCTION sandbox_changed() RETURNS trigger
    LANGUAGE plpgsql AS $$
DECLARE
    t timestamptz := clock_timestamp();
    n integer;
    last_end timestamptz;
BEGIN
    SELECT coalesce(max(seq), 0) + 1 INTO n FROM sandbox_events WHERE sandbox_id = NEW.id;
    INSERT INTO sandbox_events VALUES (NEW.id, n, t, NEW.state, NEW.reason);
    IF TG_OP = 'UPDATE' AND OLD.state IN ('ready', 'paused') THEN
        UPDATE usage_intervals SET ended_at = greatest(t, begun_at)
            WHERE sandbox_id = NEW.id AND ended_at IS NULL;
    END IF;
    IF NEW.state IN ('ready', 'paused') THEN
        SELECT coalesce(max(seq), 0) + 1, max(ended_at) INTO n, last_end FROM usage_intervals
            WHERE sandbox_id = NEW.id;
        -- A clock that was set back must not make them overlap.
        INSERT INTO usage_intervals VALUES (NEW.id, n,
            CASE NEW.state WHEN 'ready' THEN 'running' ELSE 'paused' END, greatest(t, last_end));
    END IF;
    IF NEW.ended_at IS NOT NULL THEN
        PERFORM audit_add(NEW.project_id, NULL, 'sandbox.end', NEW.id, NULL,
            jsonb_build_object('state', NEW.state, 'reason', NEW.reason));
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER sandboxes_created AFTER INSERT ON sandboxes
    FOR EACH ROW EXECUTE FUNCTION sandbox_changed();
CREATE TRIGGER sandboxes_changed AFTER UPDATE OF state ON sandboxes
    FOR EACH ROW WHEN (OLD.state <> NEW.state) EXECUTE FUNCTION sandbox_changed();

CREATE FUNCTION execution_ended() RETURNS trigger
    LANGUAGE plpgsql AS $$
BEGIN
    PERFORM audit_add((SELECT project_id FROM sandboxes WHERE id = NEW.sandbox_id), NULL,
        'execution.end', NEW.sandbox_id, NEW.id, jsonb_strip_nulls(jsonb_build_object('state',
            NEW.state, 'reason', NEW.reason, 'exitCode', NEW.exit_code)));
    RETURN NULL;
END $$;
CREATE TRIGGER executions_ended AFTER UPDATE OF state ON executions
    FOR EACH ROW WHEN (OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL)
    EXECUTE FUNCTION execution_ended();

-- Views --------------------------------------------------------------------------------

-- elapsed_ms of what happened one after the other, even if the clock was set back between.
CREATE FUNCTION lasted_ms(a timestamptz, b timestamptz) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN b < a THEN 0 ELSE elapsed_ms(a, b) END;

CREATE OR REPLACE FUNCTION sandbox_idle_at(s sandboxes) RETURNS timestamptz
    LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF EXISTS (
        SELECT FROM executions e WHERE e.sandbox_id = s.id AND e.ended_at IS NULL) THEN
        RETURN NULL;
    END IF;
    RETURN greatest(s.ready_at, s.active_at, (SELECT max(e.ended_at) FROM executions e
        WHERE e.sandbox_id = s.id)) + s.idle_seconds * interval '1 second';
END $$;

CREATE OR REPLACE VIEW sandbox_view AS
SELECT s.id, s.project_id, s.node, s.state, s.reason, s.template, s.cpus, s.memory_mb,
    s.workspace_mb, s.pids, s.ttl_seconds, s.idle_seconds, s.labels, s.egress, s.exclusive,
    rfc3339(s.created_at) AS created_at, rfc3339(s.ready_at) AS ready_at,
    rfc3339(s.expires_at) AS expires_at, CASE WHEN s.idle_seconds IS NOT NULL AND s.state = 'ready'
        THEN rfc3339(sandbox_idle_at(s)) END AS idle_at,
    rfc3339(s.ended_at) AS ended_at,
    lasted_ms(s.created_at, s.provisioning_at) AS queued_ms,
    lasted_ms(s.provisioning_at, s.ready_at) AS provision_ms,
    lasted_ms(s.created_at, s.ready_at) AS total_ms,
    (extract(epoch FROM s.created_at) * 1000000)::bigint AS created_us,
    elapsed_ms(clock_timestamp(), s.expires_at) AS expires_in_ms,
    CASE WHEN s.idle_seconds IS NOT NULL AND s.state = 'ready'
        THEN elapsed_ms(clock_timestamp(), sandbox_idle_at(s)) END AS idle_in_ms
FROM sandboxes s;

CREATE OR REPLACE VIEW execution_view AS
SELECT e.id, e.sandbox_id, e.state, e.reason, e.error, e.timeout_ms, e.on_timeout, e.background,
    e.tag, e.exit_code, e.signal, e.stdout, e.stdout_bytes, e.stdout_omitted_at, e.stderr,
    e.stderr_bytes, e.stderr_omitted_at, e.cpu_us, rfc3339(e.created_at) AS created_at,
    rfc3339(e.started_at) AS started_at, rfc3339(e.ended_at) AS ended_at,
    lasted_ms(e.started_at, e.ended_at) AS duration_ms,
    (extract(epoch FROM e.created_at) * 1000000)::bigint AS created_us,
    e.oom_killed, e.output_expired, rfc3339(e.cancel_requested_at) AS cancel_requested_at
FROM executions e;

-- What each sandbox that still has a row used, up to now.
CREATE VIEW sandbox_usage AS
SELECT s.id, s.project_id, (s.created_at AT TIME ZONE 'UTC')::date AS day,
    (SELECT count(*) FROM executions e WHERE e.sandbox_id = s.id) AS executions,
    i.runtime_ms, i.paused_ms, s.cpu_us,
    s.memory_mb::numeric * (i.runtime_ms + i.paused_ms) AS memory_mb_ms, s.exported_bytes,
    s.network_bytes
FROM sandboxes s, LATERAL (
    SELECT coalesce(sum(ms) FILTER (WHERE kind = 'running'), 0)::bigint AS runtime_ms,
        coalesce(sum(ms) FILTER (WHERE kind = 'paused'), 0)::bigint AS paused_ms
    FROM (SELECT kind, greatest(elapsed_ms(begun_at, coalesce(ended_at, clock_timestamp())), 0)
            AS ms
        FROM usage_intervals WHERE sandbox_id = s.id) x) i;

-- Admission ----------------------------------------------------------------------------

-- As before, but only retention forgets a key: at which age, is the configuration's. One that it
-- deletes at this very moment is taken anew.
CREATE OR REPLACE FUNCTION idempotency_take(p_project uuid, p_operation text, p_key text,
    p_input bytea, OUT outcome text, OUT resource uuid)
    LANGUAGE plpgsql AS $$
DECLARE
    k idempotency_keys;
BEGIN
    LOOP
        INSERT INTO idempotency_keys (project_id, operation, key, input_sha256)
            VALUES (p_project, p_operation, p_key, p_input)
            ON CONFLICT DO NOTHING;
        IF FOUND THEN
            outcome := 'taken';
            RETURN;
        END IF;
        SELECT * INTO k FROM idempotency_keys i
            WHERE i.project_id = p_project AND i.operation = p_operation AND i.key = p_key;
        EXIT WHEN FOUND;
    END LOOP;
    IF k.input_sha256 = p_input THEN
        outcome := 'replayed';
        resource := k.resource_id;
    ELSE
        outcome := 'idempotency_conflict';
    END IF;
END $$;

-- Why the project's policy does not admit the request; null when it does.
CREATE FUNCTION policy_refusal(p jsonb, r jsonb, OUT outcome text, OUT detail text)
    LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    bound record;
BEGIN
    FOR bound IN SELECT * FROM (VALUES ('cpus', 'maxCpus'), ('memoryMb', 'maxMemoryMb'),
        ('workspaceMb', 'maxWorkspaceMb'), ('pids', 'maxPids'), ('ttlSeconds', 'maxTtlSeconds'),
        ('idleSeconds', 'maxIdleSeconds')) b (field, name)
    LOOP
        IF (r->>bound.field)::bigint > (p->>bound.name)::bigint THEN
            outcome := 'limit_exceeded';
            detail := format('%s is over the project''s %s of %s', bound.field, bound.name,
                p->>bound.name);
            RETURN;
        ELSIF p ? bound.name AND r ? bound.field AND r->>bound.field IS NULL THEN
            outcome := 'limit_exceeded';
            detail := format('%s may not be null: the project''s %s is %s', bound.field,
                bound.name, p->>bound.name);
            RETURN;
        END IF;
    END LOOP;
    IF p ? 'templates' AND r ? 'template' AND NOT p->'templates' ? (r->>'template') THEN
        outcome := 'unsatisfiable';
        detail := format('the project''s policy does not allow the template "%s"', r->>'template');
    ELSIF p ? 'egressModes' AND r ? 'egress' AND NOT p->'egressModes' ? (r->'egress'->>'mode') THEN
        outcome := 'unsatisfiable';
        detail := format('the project''s policy does not allow egress mode "%s"',
            r->'egress'->>'mode');
    END IF;
END $$;

-- Lifetimes that a request leaves open are the project's defaults, but no longer than its maxima;
-- else its maxima, else none.
CREATE FUNCTION policy_lifetime(p jsonb, r jsonb, p_field text, p_default text, p_max text)
    RETURNS bigint
    LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN r ? p_field THEN (r->>p_field)::bigint
        ELSE least((p->>p_default)::bigint, (p->>p_max)::bigint) END;

DROP FUNCTION sandbox_admit(uuid, text, text, bytea, jsonb);

-- outcome: created, replayed, or an error code's name; detail: a sentence for the client.
CREATE FUNCTION sandbox_admit(p_project uuid, p_who jsonb, p_key text, p_input bytea,
    r jsonb, -- the normalised request: every field present, but lifetimes that were left open
    OUT outcome text, OUT id uuid, OUT detail text)
    LANGUAGE plpgsql AS $$
DECLARE
    project projects;
    n integer;
    most integer;
    full_nodes integer[] := '{}';
    live bigint;
    ttl bigint;
BEGIN
    -- The key first: a replay is answered whatever the limits say now.
    IF p_key IS NOT NULL THEN
        SELECT t.outcome, t.resource INTO outcome, id
            FROM idempotency_take(p_project, 'create', p_key, p_input) t;
        IF outcome <> 'taken' THEN
            RETURN;
        END IF;
        outcome := NULL;
    END IF;

    -- The project's row is the lock under which its limits are judged.
    SELECT * INTO project FROM projects p WHERE p.id = p_project FOR NO KEY UPDATE;
    IF project.id IS NULL THEN
        outcome := 'not_found';
    ELSIF project.disabled_at IS NOT NULL THEN
        outcome := 'project_disabled';
    ELSE
        SELECT f.outcome, f.detail INTO outcome, detail FROM policy_refusal(project.policy, r) f;
        SELECT count(*) INTO live FROM sandboxes s
            WHERE s.project_id = p_project AND s.ended_at IS NULL;
        IF outcome IS NULL AND live >= (project.policy->>'maxSandboxes')::bigint THEN
            outcome := 'project_limit';
            detail := format('the project has %s of at most %s sandboxes at once', live,
                project.policy->>'maxSandboxes');
        END IF;
    END IF;

    IF outcome IS NULL THEN
        -- The choice is made before the node's lock is had; others may have filled it meanwhile.
        -- Then the choice is made anew, until it falls on a node that is known to be full.
        LOOP
            SELECT m.number, m.max_sandboxes INTO n, most FROM nodes m
                WHERE node_is_live(m) AND m.accepting AND (r->>'template') = ANY (m.templates)
                ORDER BY (SELECT count(*) FROM sandboxes s
                    WHERE s.node = m.number AND s.ended_at IS NULL)::float8 / m.max_sandboxes,
                    m.number
                LIMIT 1 FOR NO KEY UPDATE;
            SELECT count(*) INTO live FROM sandboxes s WHERE s.node = n AND s.ended_at IS NULL;
            EXIT WHEN n IS NULL OR live < most OR n = ANY (full_nodes);
            full_nodes := full_nodes || n;
        END LOOP;
        IF n IS NULL THEN
            IF NOT EXISTS (SELECT FROM nodes m WHERE node_is_live(m) AND m.accepting) THEN
                outcome := 'daemon_unavailable';
                detail := 'no node is taking work';
            ELSE
                outcome := 'unsatisfiable';
                detail := format('no node offers the template "%s"', r->>'template');
            END IF;
        ELSIF live >= most THEN
            outcome := 'no_capacity';
            detail := format('every node is full; the least loaded holds %s', live);
        END IF;
    END IF;

    IF outcome IS NOT NULL THEN
        -- The key of a refused request is free again.
        IF p_key IS NOT NULL THEN
            DELETE FROM idempotency_keys i WHERE i.project_id = p_project
                AND i.operation = 'create' AND i.key = p_key;
        END IF;
        RETURN;
    END IF;

    id := (lpad(to_hex(n), 4, '0') || substr(gen_random_uuid()::text, 5))::uuid;
    ttl := policy_lifetime(project.policy, r, 'ttlSeconds', 'defaultTtlSeconds', 'maxTtlSeconds');
    INSERT INTO sandboxes (id, project_id, node, template, cpus, memory_mb, workspace_mb, pids,
            ttl_seconds, idle_seconds, env, labels, egress, exclusive, token_id, expires_at)
        VALUES (id, p_project, n, r->>'template', (r->>'cpus')::integer,
            (r->>'memoryMb')::integer, (r->>'workspaceMb')::integer, (r->>'pids')::integer, ttl,
            policy_lifetime(project.policy, r, 'idleSeconds', 'defaultIdleSeconds',
                'maxIdleSeconds'),
            r->'env', r->'labels', r->'egress', (r->>'exclusive')::boolean, p_who->>'token',
            clock_timestamp() + ttl * interval '1 second');
    IF p_key IS NOT NULL THEN
        UPDATE idempotency_keys i SET resource_id = sandbox_admit.id
            WHERE i.project_id = p_project AND i.operation = 'create' AND i.key = p_key;
    END IF;
    PERFORM audit_add(p_project, p_who, 'sandbox.create', id, NULL,
        jsonb_build_object('template', r->'template', 'cpus', r->'cpus', 'memoryMb',
            r->'memoryMb'));
    -- Whoever admits waits for the disk by itself (FLUSH), and the daemon begins meanwhile: the rows
    -- locked here, and the lock that every NOTIFY takes, are not held while the disk works. Should the
    -- server crash before that, nobody was told of the sandbox, and its guest is ended.
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM pg_notify('paddock_' || n, 's' || id);
    outcome := 'created';
END $$;

DROP FUNCTION execution_admit(uuid, uuid, text, text, bytea, integer, jsonb);

CREATE FUNCTION execution_admit(p_project uuid, p_sandbox uuid, p_who jsonb, p_key text,
    p_input bytea, p_live_max integer,
    r jsonb, -- {spec, timeoutMs, onTimeout, background, tag}
    OUT outcome text, OUT id uuid, OUT detail text)
    LANGUAGE plpgsql AS $$
DECLARE
    s sandboxes;
    holder uuid;
    live bigint;
    op text := 'exec:' || p_sandbox;
BEGIN
    SELECT * INTO s FROM sandboxes x
        WHERE x.id = p_sandbox AND x.project_id = p_project FOR NO KEY UPDATE;
    IF s.id IS NULL THEN
        outcome := 'not_found';
        RETURN;
    END IF;
    IF p_key IS NOT NULL THEN
        SELECT t.outcome, t.resource INTO outcome, id
            FROM idempotency_take(p_project, op, p_key, p_input) t;
        IF outcome <> 'taken' THEN
            RETURN;
        END IF;
    END IF;

    SELECT count(*), min(e.id::text)::uuid INTO live, holder FROM executions e
        WHERE e.sandbox_id = p_sandbox AND e.ended_at IS NULL;
    IF s.state IN ('stopping', 'terminated', 'expired', 'failed') THEN
        outcome := 'gone';
        detail := format('the sandbox is %s (%s)', s.state, s.reason);
    ELSIF s.expires_at <= clock_timestamp() THEN
        -- Its time is over, even if its end is not recorded yet.
        outcome := 'gone';
        detail := 'the sandbox is expired (ttl)';
    ELSIF s.state = 'paused' THEN
        outcome := 'state_conflict';
        detail := 'the sandbox is paused; resume it first';
    ELSIF s.exclusive AND live > 0 THEN
        outcome := 'busy';
        detail := format('execution %s holds the exclusive sandbox', holder);
    ELSIF live >= p_live_max THEN
        outcome := 'project_limit';
        detail := format('the sandbox has %s of at most %s executions at once', live, p_live_max);
    ELSIF NOT EXISTS (SELECT FROM nodes m WHERE m.number = s.node AND node_is_live(m)) THEN
        outcome := 'daemon_unavailable';
        detail := 'the sandbox''s node does not answer';
    ELSE
        INSERT INTO executions AS e (sandbox_id, spec, timeout_ms, on_timeout, background, tag,
                token_id)
            VALUES (p_sandbox, r->'spec', (r->>'timeoutMs')::bigint, r->>'onTimeout',
                (r->>'background')::boolean, r->>'tag', p_who->>'token')
            RETURNING e.id INTO id;
        IF p_key IS NOT NULL THEN
            UPDATE idempotency_keys i SET resource_id = execution_admit.id
                WHERE i.project_id = p_project AND i.operation = op AND i.key = p_key;
        END IF;
        PERFORM audit_add(p_project, p_who, 'execution.create', p_sandbox, id, NULL);
        -- As in sandbox_admit; but a key must not be lost when its execution may have begun.
        IF p_key IS NULL THEN
            PERFORM set_config('synchronous_commit', 'off', true);
        END IF;
        PERFORM pg_notify('paddock_' || s.node, 'e' || id);
        outcome := 'created';
        RETURN;
    END IF;
    IF p_key IS NOT NULL THEN
        DELETE FROM idempotency_keys i WHERE i.project_id = p_project AND i.operation = op
            AND i.key = p_key;
    END IF;
END $$;

-- Changes by clients -------------------------------------------------------------------

-- A client asks for the end. Terminal and stopping sandboxes stay as they are.
DROP FUNCTION sandbox_request_stop(uuid, uuid);
CREATE FUNCTION sandbox_request_stop(p_project uuid, p_sandbox uuid, p_who jsonb)
    RETURNS SETOF sandbox_view
    LANGUAGE plpgsql AS $$
DECLARE
    s sandboxes;
BEGIN
    SELECT * INTO s FROM sandboxes x
        WHERE x.id = p_sandbox AND x.project_id = p_project FOR NO KEY UPDATE;
    IF s.state IN ('queued', 'provisioning', 'ready', 'paused') THEN
        PERFORM audit_add(p_project, p_who, 'sandbox.terminate', s.id, NULL, NULL);
    END IF;
    IF s.state = 'queued' THEN
        PERFORM sandbox_close(s.id, 'terminated', 'requested');
    ELSIF s.state IN ('provisioning', 'ready', 'paused') THEN
        UPDATE sandboxes SET state = 'stopping', reason = 'requested' WHERE sandboxes.id = s.id;
    END IF;
    IF s.ended_at IS NULL AND s.id IS NOT NULL THEN
        PERFORM pg_notify('paddock_' || s.node, 's' || s.id);
    END IF;
    RETURN QUERY SELECT * FROM sandbox_view v
        WHERE v.id = p_sandbox AND v.project_id = p_project;
END $$;

-- Changes what r names of {ttlSeconds, idleSeconds, labels} of a live sandbox; lifetimes count from
-- now. Judged under the row's lock, under which the sandbox ends, too, and by the clock that ends
-- it: a renewal either comes in time or is told that it did not.
CREATE FUNCTION sandbox_update(p_project uuid, p_sandbox uuid, p_who jsonb, r jsonb,
    OUT outcome text, OUT id uuid, OUT detail text)
    LANGUAGE plpgsql AS $$
DECLARE
    s sandboxes;
    policy jsonb;
BEGIN
    SELECT * INTO s FROM sandboxes x
        WHERE x.id = p_sandbox AND x.project_id = p_project FOR NO KEY UPDATE;
    SELECT p.policy INTO policy FROM projects p WHERE p.id = p_project;
    IF s.id IS NULL THEN
        outcome := 'not_found';
    ELSIF s.state IN ('stopping', 'terminated', 'expired', 'failed') THEN
        outcome := 'gone';
        detail := format('the sandbox is %s (%s)', s.state, s.reason);
    ELSIF s.expires_at <= clock_timestamp() THEN
        outcome := 'gone';
        detail := 'the sandbox is expired (ttl)';
    ELSE
        SELECT f.outcome, f.detail INTO outcome, detail FROM policy_refusal(policy, r) f;
    END IF;
    IF outcome IS NOT NULL THEN
        RETURN;
    END IF;
    UPDATE sandboxes x SET
        ttl_seconds = CASE WHEN r ? 'ttlSeconds' THEN (r->>'ttlSeconds')::bigint
            ELSE ttl_seconds END,
        expires_at = CASE WHEN r ? 'ttlSeconds'
            THEN clock_timestamp() + (r->>'ttlSeconds')::bigint * interval '1 second'
            ELSE expires_at END,
        idle_seconds = CASE WHEN r ? 'idleSeconds' THEN (r->>'idleSeconds')::bigint
            ELSE idle_seconds END,
        active_at = CASE WHEN r ? 'idleSeconds' THEN clock_timestamp() ELSE active_at END,
        labels = CASE WHEN r ? 'labels' THEN r->'labels' ELSE labels END
        WHERE x.id = s.id;
    PERFORM audit_add(p_project, p_who, 'sandbox.update', s.id, NULL,
        r - 'labels'); -- values of labels are the client's content
    PERFORM pg_notify('paddock_' || s.node, 's' || s.id);
    id := s.id;
    outcome := 'updated';
END $$;

-- A client wants an execution ended, its whole tree (onTimeout terminate: the sandbox as well).
-- One that ended meanwhile stays as it is.
CREATE FUNCTION execution_request_cancel(p_project uuid, p_sandbox uuid, p_execution uuid,
    p_who jsonb) RETURNS SETOF execution_view
    LANGUAGE plpgsql AS $$
DECLARE
    s sandboxes;
    e executions;
BEGIN
    SELECT * INTO s FROM sandboxes x
        WHERE x.id = p_sandbox AND x.project_id = p_project FOR NO KEY UPDATE;
    IF s.id IS NULL THEN
        RETURN;
    END IF;
    SELECT * INTO e FROM executions x
        WHERE x.id = p_execution AND x.sandbox_id = p_sandbox FOR NO KEY UPDATE;
    IF e.ended_at IS NULL AND e.id IS NOT NULL AND e.cancel_requested_at IS NULL THEN
        PERFORM audit_add(p_project, p_who, 'execution.cancel', p_sandbox, p_execution, NULL);
        UPDATE executions x SET cancel_requested_at = clock_timestamp() WHERE x.id = e.id;
        IF e.state = 'queued' THEN
            UPDATE executions x SET state = 'cancelled', reason = 'execution_cancel', spec = NULL,
                    ended_at = clock_timestamp()
                WHERE x.id = e.id;
            IF e.on_timeout = 'terminate' THEN
                IF s.state = 'queued' THEN
                    PERFORM sandbox_close(s.id, 'terminated', 'execution_cancel');
                ELSE
                    UPDATE sandboxes x SET state = 'stopping', reason = 'execution_cancel'
                        WHERE x.id = s.id AND x.state IN ('provisioning', 'ready', 'paused');
                END IF;
                PERFORM pg_notify('paddock_' || s.node, 's' || s.id);
            END IF;
        END IF;
        -- Also of what waited: somebody may wait for it, and a claim that a crash of the server
        -- forgot may have begun it.
        PERFORM pg_notify('paddock_' || s.node, 'c' || e.id);
    END IF;
    RETURN QUERY SELECT * FROM execution_view v
        WHERE v.id = p_execution AND v.sandbox_id = p_sandbox;
END $$;

-- Ends what a project has, each with this reason; its node is told.
CREATE FUNCTION project_stop_all(p_project uuid, p_reason text) RETURNS bigint
    LANGUAGE plpgsql AS $$
DECLARE
    s record;
    n bigint := 0;
BEGIN
    FOR s IN SELECT x.id, x.node, x.state FROM sandboxes x
        WHERE x.project_id = p_project AND x.ended_at IS NULL AND x.state <> 'stopping'
        ORDER BY x.id FOR NO KEY UPDATE
    LOOP
        IF s.state = 'queued' THEN
            PERFORM sandbox_close(s.id, 'terminated', p_reason);
        ELSE
            UPDATE sandboxes SET state = 'stopping', reason = p_reason WHERE id = s.id;
        END IF;
        PERFORM pg_notify('paddock_' || s.node, 's' || s.id);
        n := n + 1;
    END LOOP;
    RETURN n;
END $$;

CREATE FUNCTION project_create(p_name text, p_policy jsonb, p_who jsonb) RETURNS SETOF projects
    LANGUAGE plpgsql AS $$
DECLARE
    p projects;
BEGIN
    INSERT INTO projects (name, policy) VALUES (p_name, p_policy)
        ON CONFLICT (name) DO NOTHING RETURNING * INTO p;
    IF p.id IS NOT NULL THEN
        PERFORM audit_add(p.id, p_who, 'project.create', NULL, NULL,
            jsonb_build_object('name', p_name, 'policy', p_policy));
        RETURN NEXT p;
    END IF;
END $$;

-- New limits hold for what is admitted from now on.
CREATE FUNCTION project_set_policy(p_project uuid, p_policy jsonb, p_who jsonb)
    RETURNS SETOF projects
    LANGUAGE plpgsql AS $$
BEGIN
    UPDATE projects SET policy = p_policy WHERE id = p_project;
    IF FOUND THEN
        PERFORM audit_add(p_project, p_who, 'project.policy', NULL, NULL, p_policy);
    END IF;
    RETURN QUERY SELECT * FROM projects WHERE id = p_project;
END $$;

CREATE FUNCTION project_set_disabled(p_project uuid, p_disabled boolean, p_who jsonb)
    RETURNS SETOF projects
    LANGUAGE plpgsql AS $$
DECLARE
    p projects;
BEGIN
    SELECT * INTO p FROM projects WHERE id = p_project FOR NO KEY UPDATE;
    IF p.id IS NOT NULL AND (p.disabled_at IS NOT NULL) <> p_disabled THEN
        UPDATE projects SET disabled_at = CASE WHEN p_disabled THEN clock_timestamp() END
            WHERE id = p_project;
        PERFORM audit_add(p_project, p_who,
            CASE WHEN p_disabled THEN 'project.disable' ELSE 'project.enable' END, NULL, NULL,
            NULL);
    END IF;
    IF p_disabled THEN
        PERFORM project_stop_all(p_project, 'project_disabled');
    END IF;
    RETURN QUERY SELECT * FROM projects WHERE id = p_project;
END $$;

CREATE FUNCTION token_create(p_id text, p_project uuid, p_name text, p_sha256 bytea,
    p_scopes text[], p_seconds bigint, p_who jsonb) RETURNS SETOF tokens
    LANGUAGE plpgsql AS $$
DECLARE
    t tokens;
BEGIN
    INSERT INTO tokens (id, project_id, name, secret_sha256, scopes, expires_at)
        VALUES (p_id, p_project, p_name, p_sha256, p_scopes,
            clock_timestamp() + p_seconds * interval '1 second')
        RETURNING * INTO t;
    PERFORM audit_add(p_project, p_who, 'token.create', NULL, NULL, jsonb_build_object('token',
        p_id, 'scopes', p_scopes));
    RETURN NEXT t;
END $$;

-- p_project null: any token.
CREATE FUNCTION token_revoke(p_id text, p_project uuid, p_who jsonb) RETURNS SETOF tokens
    LANGUAGE plpgsql AS $$
DECLARE
    t tokens;
BEGIN
    SELECT * INTO t FROM tokens x WHERE x.id = p_id
        AND (p_project IS NULL OR x.project_id = p_project) FOR NO KEY UPDATE;
    IF t.id IS NULL THEN
        RETURN;
    END IF;
    IF t.revoked_at IS NULL THEN
        UPDATE tokens x SET revoked_at = clock_timestamp() WHERE x.id = p_id;
        PERFORM audit_add(t.project_id, p_who, 'token.revoke', NULL, NULL,
            jsonb_build_object('token', p_id));
    END IF;
    RETURN QUERY SELECT * FROM tokens x WHERE x.id = p_id;
END $$;

-- The daemon's side --------------------------------------------------------------------

-- Ends a sandbox that is not ended, and its executions. A stop in progress keeps its reason. The
-- caller holds the sandbox's row.
CREATE OR REPLACE FUNCTION sandbox_close(p_id uuid, p_state text, p_reason text) RETURNS void
    LANGUAGE plpgsql AS $$
DECLARE
    final_state text := p_state;
    final_reason text := p_reason;
    s sandboxes;
BEGIN
    SELECT * INTO s FROM sandboxes x WHERE x.id = p_id AND x.ended_at IS NULL;
    IF s.id IS NULL THEN
        RETURN;
    END IF;
    IF s.state = 'stopping' THEN
        final_reason := s.reason;
        final_state := CASE
            WHEN s.reason IN ('ttl', 'idle') THEN 'expired'
            WHEN s.reason IN ('requested', 'execution_timeout', 'execution_cancel',
                'project_disabled', 'policy') THEN 'terminated'
            ELSE 'failed' END;
    END IF;
    UPDATE executions SET ended_at = clock_timestamp(), spec = NULL, reason = final_reason,
            -- A daemon that is gone may have begun what still reads as queued.
            state = CASE WHEN state = 'queued'
                AND p_reason NOT IN ('daemon_restart', 'node_lost') THEN 'cancelled' ELSE 'lost' END
        WHERE sandbox_id = p_id AND ended_at IS NULL;
    UPDATE sandboxes SET env = '{}', ended_at = clock_timestamp(), state = final_state,
            reason = final_reason
        WHERE id = p_id;
END $$;

-- Activity that is no execution, such as CPU use, so long ago: the idle time counts from there.
CREATE FUNCTION sandbox_active(p_id uuid, p_node integer, p_epoch bigint, p_age_ms bigint)
    RETURNS SETOF sandbox_view
    LANGUAGE plpgsql AS $$
BEGIN
    UPDATE sandboxes SET active_at = greatest(active_at,
            clock_timestamp() - p_age_ms * interval '1 millisecond')
        WHERE id = p_id AND node = p_node AND ended_at IS NULL
            AND node_is_current(p_node, p_epoch);
    RETURN QUERY SELECT * FROM sandbox_view v WHERE v.id = p_id;
END $$;

-- CPU time as measured; what a guest used never goes back. One statement for many.
CREATE FUNCTION sandboxes_set_cpu(p_node integer, p_epoch bigint, p_ids uuid[], p_cpu_us bigint[])
    RETURNS bigint
    LANGUAGE plpgsql AS $$
DECLARE
    n bigint;
BEGIN
    -- Locked in the order in which everybody locks several; what another holds is told next time.
    WITH held AS MATERIALIZED (
        SELECT x.id FROM sandboxes x WHERE x.id = ANY (p_ids) AND x.node = p_node
            AND x.ended_at IS NULL ORDER BY x.id FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE sandboxes s SET cpu_us = greatest(s.cpu_us, m.cpu_us)
        FROM unnest(p_ids, p_cpu_us) AS m (id, cpu_us), held
        WHERE s.id = m.id AND s.id = held.id AND node_is_current(p_node, p_epoch);
    GET DIAGNOSTICS n = ROW_COUNT;
    RETURN n;
END $$;

-- ttl and idle are judged here, under the row's lock, under which executions are admitted and
-- limits changed, too: what was renewed or got new work does not end.
CREATE OR REPLACE FUNCTION sandbox_stop(p_id uuid, p_node integer, p_epoch bigint, p_reason text)
    RETURNS SETOF sandbox_view
    LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM sandboxes s WHERE s.id = p_id FOR NO KEY UPDATE;
    UPDATE sandboxes s SET state = 'stopping', reason = p_reason
        WHERE id = p_id AND node = p_node AND state IN ('provisioning', 'ready', 'paused')
            AND node_is_current(p_node, p_epoch)
            AND (p_reason <> 'ttl' OR expires_at <= clock_timestamp())
            AND (p_reason <> 'idle' OR sandbox_idle_at(s) <= clock_timestamp());
    RETURN QUERY SELECT * FROM sandbox_view v WHERE v.id = p_id;
END $$;

DROP FUNCTION sandbox_end(uuid, integer, bigint, text, text);
CREATE FUNCTION sandbox_end(p_id uuid, p_node integer, p_epoch bigint, p_state text,
    p_reason text, p_cpu_us bigint) RETURNS SETOF sandbox_view
    LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM sandboxes s WHERE s.id = p_id AND s.node = p_node AND s.ended_at IS NULL
        AND node_is_current(p_node, p_epoch) FOR NO KEY UPDATE;
    IF FOUND THEN
        UPDATE sandboxes SET cpu_us = greatest(cpu_us, p_cpu_us) WHERE id = p_id;
        PERFORM sandbox_close(p_id, p_state, p_reason);
    END IF;
    RETURN QUERY SELECT * FROM sandbox_view v WHERE v.id = p_id;
END $$;

-- The result of a running execution. Zero rows changed (ended meanwhile, old epoch) is no
-- error: the row as it is comes back.
DROP FUNCTION execution_finish(uuid, integer, bigint, text, text, text, integer, integer, bytea,
    bigint, bigint, bytea, bigint, bigint, bigint);
CREATE FUNCTION execution_finish(p_id uuid, p_node integer, p_epoch bigint, p_state text,
    p_reason text, p_error text, p_exit_code integer, p_signal integer,
    p_stdout bytea, p_stdout_bytes bigint, p_stdout_omitted_at bigint,
    p_stderr bytea, p_stderr_bytes bigint, p_stderr_omitted_at bigint, p_cpu_us bigint,
    p_oom_killed boolean)
    RETURNS SETOF execution_view
    LANGUAGE plpgsql AS $$
DECLARE
    ended_sandbox uuid;
BEGIN
    -- The sandbox first, like everyone who locks both.
    IF p_state IN ('timed_out', 'cancelled') THEN
        SELECT s.id INTO ended_sandbox FROM executions e JOIN sandboxes s ON s.id = e.sandbox_id
            WHERE e.id = p_id AND e.on_timeout = 'terminate' FOR NO KEY UPDATE OF s;
    END IF;
    UPDATE executions e SET state = 'running', started_at = clock_timestamp()
        FROM sandboxes s
        WHERE e.id = p_id AND e.state = 'queued' AND s.id = e.sandbox_id AND s.node = p_node
            AND node_is_current(p_node, p_epoch);
    UPDATE executions e SET state = p_state, reason = p_reason, error = left(p_error, 500),
            exit_code = p_exit_code, signal = p_signal, stdout = p_stdout,
            stdout_bytes = p_stdout_bytes, stdout_omitted_at = p_stdout_omitted_at,
            stderr = p_stderr, stderr_bytes = p_stderr_bytes,
            stderr_omitted_at = p_stderr_omitted_at, cpu_us = p_cpu_us,
            oom_killed = p_oom_killed, spec = NULL, ended_at = clock_timestamp()
        FROM sandboxes s
        WHERE e.id = p_id AND e.ended_at IS NULL AND s.id = e.sandbox_id AND s.node = p_node
            AND node_is_current(p_node, p_epoch);
    -- With the result, not after it: neither a crash nor a quick DELETE may come between.
    IF FOUND AND ended_sandbox IS NOT NULL THEN
        PERFORM sandbox_stop(ended_sandbox, p_node, p_epoch,
            CASE p_state WHEN 'cancelled' THEN 'execution_cancel' ELSE 'execution_timeout' END);
    END IF;
    RETURN QUERY SELECT * FROM execution_view v WHERE v.id = p_id;
END $$;

-- Nodes --------------------------------------------------------------------------------

ALTER TABLE nodes
    ADD COLUMN fenced_epoch bigint, -- the epoch that lost its lease last
    ADD COLUMN silent_at timestamptz; -- when it was found silent; a later heartbeat undoes it

-- current, fenced (its lease ran out and its sandboxes were given up: it must begin anew), or
-- taken_over (another daemon runs under this number).
CREATE FUNCTION node_heartbeat(p_node integer, p_epoch bigint) RETURNS text
    LANGUAGE plpgsql AS $$
BEGIN
    UPDATE nodes SET heartbeat_at = clock_timestamp() WHERE number = p_node AND epoch = p_epoch;
    IF FOUND THEN
        RETURN 'current';
    END IF;
    RETURN CASE WHEN EXISTS (SELECT FROM nodes WHERE number = p_node AND fenced_epoch = p_epoch
            AND epoch = p_epoch + 1) THEN 'fenced' ELSE 'taken_over' END;
END $$;

-- Gives up what silent nodes hold: a new epoch, under which the old daemon writes nothing any more,
-- and the end of their sandboxes. Any daemon may call it; each node is fenced once. A node is
-- silent when it was found so twice, a lease apart: after an outage of the database, or a leap of
-- its clock, all of them seem to be, until they had the time to say otherwise. p_self: the caller's
-- own node, which is not silent.
CREATE FUNCTION nodes_fence(p_self integer, OUT nodes bigint, OUT sandboxes bigint)
    LANGUAGE plpgsql AS $$
DECLARE
    n integer;
    seen_before boolean;
    s uuid;
BEGIN
    nodes := 0;
    sandboxes := 0;
    FOR n, seen_before IN SELECT m.number, m.silent_at > m.heartbeat_at FROM nodes m
        WHERE m.number IS DISTINCT FROM p_self AND NOT node_is_live(m)
            AND (coalesce(m.silent_at <= m.heartbeat_at, true) OR m.silent_at
                <= clock_timestamp() - m.lease_ms * interval '1 millisecond')
            AND EXISTS (SELECT FROM sandboxes x WHERE x.node = m.number AND x.ended_at IS NULL)
        ORDER BY m.number FOR NO KEY UPDATE SKIP LOCKED
    LOOP
        IF seen_before IS NOT TRUE THEN
            UPDATE nodes m SET silent_at = clock_timestamp() WHERE m.number = n;
            CONTINUE;
        END IF;
        UPDATE nodes m SET fenced_epoch = epoch, epoch = epoch + 1, accepting = false
            WHERE m.number = n;
        nodes := nodes + 1;
        FOR s IN SELECT x.id FROM sandboxes x WHERE x.node = n AND x.ended_at IS NULL
            ORDER BY x.id FOR NO KEY UPDATE
        LOOP
            PERFORM sandbox_close(s, 'failed', 'node_lost');
            sandboxes := sandboxes + 1;
        END LOOP;
    END LOOP;
END $$;

-- Retention ----------------------------------------------------------------------------

-- Deletes at most p_batch of each kind of what is older than its age (in seconds). One at a time,
-- whoever calls: busy is true when another is at work. more: something may be left.
CREATE FUNCTION retention_clean(p_batch integer, p_output_age bigint, p_sandbox_age bigint,
    p_key_age bigint, p_audit_age bigint, OUT busy boolean, OUT outputs bigint,
    OUT sandboxes bigint, OUT keys bigint, OUT audits bigint, OUT more boolean)
    LANGUAGE plpgsql AS $$
DECLARE
    second constant interval := interval '1 second';
    executions_a_sandbox constant integer := 10;
    n bigint;
BEGIN
    outputs := 0;
    sandboxes := 0;
    keys := 0;
    audits := 0;
    more := false;
    -- Any constant will do: "retain" in ASCII.
    busy := NOT pg_try_advisory_xact_lock(125779853044078);
    IF busy THEN
        RETURN;
    END IF;

    -- All that was written is omitted now.
    UPDATE executions SET stdout = '', stderr = '', output_expired = true,
            stdout_omitted_at = CASE WHEN stdout_bytes > 0 THEN 0 END,
            stderr_omitted_at = CASE WHEN stderr_bytes > 0 THEN 0 END WHERE id IN (
        SELECT e.id FROM executions e WHERE e.ended_at < clock_timestamp() - p_output_age * second
            AND NOT e.output_expired ORDER BY e.ended_at LIMIT p_batch FOR NO KEY UPDATE SKIP LOCKED);
    GET DIAGNOSTICS outputs = ROW_COUNT;

    -- A sandbox may have had any number of executions: those go first, as many as make a short
    -- step. What is deleted is counted in the same step: in one place or the other.
    WITH old AS MATERIALIZED (
        SELECT s.id, s.project_id, (s.created_at AT TIME ZONE 'UTC')::date AS day FROM sandboxes s
            WHERE s.ended_at < clock_timestamp() - p_sandbox_age * second
            ORDER BY s.ended_at LIMIT p_batch FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM executions e WHERE e.id IN (SELECT x.id FROM executions x
                JOIN old ON old.id = x.sandbox_id LIMIT p_batch * executions_a_sandbox)
            RETURNING e.sandbox_id
    ), used AS (
        INSERT INTO usage_days AS d (project_id, day, executions)
            SELECT old.project_id, old.day, count(*) FROM gone JOIN old ON old.id = gone.sandbox_id
                GROUP BY old.project_id, old.day
            ON CONFLICT (project_id, day) DO UPDATE
                SET executions = d.executions + EXCLUDED.executions
    )
    SELECT count(*) INTO n FROM gone;

    -- The oldest first, then what may go of them: else all that is old would be walked through.
    WITH oldest AS MATERIALIZED (
        SELECT s.id FROM sandboxes s WHERE s.ended_at < clock_timestamp() - p_sandbox_age * second
            ORDER BY s.ended_at LIMIT p_batch FOR UPDATE SKIP LOCKED
    ), old AS MATERIALIZED (
        SELECT o.id FROM oldest o
            WHERE NOT EXISTS (SELECT FROM executions e WHERE e.sandbox_id = o.id)
    ), used AS (
        INSERT INTO usage_days AS d SELECT u.project_id, u.day, count(*), sum(u.executions),
                sum(u.runtime_ms), sum(u.paused_ms), sum(u.cpu_us), sum(u.memory_mb_ms),
                sum(u.exported_bytes), sum(u.network_bytes)
            FROM sandbox_usage u JOIN old ON old.id = u.id GROUP BY u.project_id, u.day
            ON CONFLICT (project_id, day) DO UPDATE SET
                sandboxes = d.sandboxes + EXCLUDED.sandboxes,
                executions = d.executions + EXCLUDED.executions,
                runtime_ms = d.runtime_ms + EXCLUDED.runtime_ms,
                paused_ms = d.paused_ms + EXCLUDED.paused_ms,
                cpu_us = d.cpu_us + EXCLUDED.cpu_us,
                memory_mb_ms = d.memory_mb_ms + EXCLUDED.memory_mb_ms,
                exported_bytes = d.exported_bytes + EXCLUDED.exported_bytes,
                network_bytes = d.network_bytes + EXCLUDED.network_bytes
    )
    DELETE FROM sandboxes s USING old WHERE s.id = old.id;
    GET DIAGNOSTICS sandboxes = ROW_COUNT;

    DELETE FROM idempotency_keys i WHERE (i.project_id, i.operation, i.key) IN (
        SELECT k.project_id, k.operation, k.key FROM idempotency_keys k
            WHERE k.created_at < clock_timestamp() - p_key_age * second
            ORDER BY k.created_at LIMIT p_batch FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS keys = ROW_COUNT;

    DELETE FROM audit a WHERE a.id IN (
        SELECT x.id FROM audit x WHERE x.at < clock_timestamp() - p_audit_age * second
            ORDER BY x.at LIMIT p_batch);
    GET DIAGNOSTICS audits = ROW_COUNT;
    more := greatest(outputs, sandboxes, keys, audits) >= p_batch
        OR n >= p_batch * executions_a_sandbox;
END $$;
