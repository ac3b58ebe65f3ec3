-- Projects, tokens, nodes, sandboxes, executions, idempotency keys; the states and
-- their transitions; the functions in which work is admitted, claimed and ended.
--
-- Every function that a program calls is one atomic step. Decisions on time use the
-- database's clock only. Writes of a daemon carry its node number and epoch; an old
-- epoch changes no row.

-- STABLE as to_char is: a stricter mark would keep the planner from inlining it.
CREATE FUNCTION rfc3339(t timestamptz) RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN to_char(t AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"');

CREATE FUNCTION elapsed_ms(a timestamptz, b timestamptz) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (extract(epoch FROM b - a) * 1000)::bigint;

-- Projects and tokens ------------------------------------------------------------------

CREATE TABLE projects (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name text NOT NULL UNIQUE CHECK (name ~ '^[a-z][a-z0-9-]{0,62}$' AND name !~ '-$'
        -- a name must never read as an id
        AND name !~ '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$'),
    max_sandboxes integer CHECK (max_sandboxes >= 0), -- null: unlimited
    created_at timestamptz NOT NULL DEFAULT now(),
    disabled_at timestamptz
);

CREATE TABLE tokens (
    id text PRIMARY KEY CHECK (id ~ '^[0-9a-f]{16}$'),
    project_id uuid REFERENCES projects ON DELETE CASCADE, -- null: the installation
    name text NOT NULL DEFAULT '' CHECK (length(name) <= 200),
    secret_sha256 bytea NOT NULL CHECK (octet_length(secret_sha256) = 32),
    scopes text[] NOT NULL CHECK (scopes <@ ARRAY['sandbox:read', 'sandbox:write', 'admin']
        AND cardinality(scopes) > 0),
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz,
    revoked_at timestamptz,
    CHECK (project_id IS NOT NULL OR 'admin' = ANY (scopes))
);
CREATE INDEX tokens_project ON tokens (project_id, created_at);

-- Nodes --------------------------------------------------------------------------------

CREATE TABLE nodes (
    number integer PRIMARY KEY CHECK (number BETWEEN 0 AND 65535),
    epoch bigint NOT NULL DEFAULT 1 CHECK (epoch > 0), -- raised at each start of the daemon
    accepting boolean NOT NULL DEFAULT true,
    heartbeat_at timestamptz NOT NULL DEFAULT now(),
    lease_ms bigint NOT NULL CHECK (lease_ms > 0),
    started_at timestamptz NOT NULL DEFAULT now(),
    version text NOT NULL,
    max_sandboxes integer NOT NULL CHECK (max_sandboxes > 0),
    templates text[] NOT NULL,
    facts jsonb NOT NULL DEFAULT '{}' -- runsc, platform, resource controls in force
);

CREATE FUNCTION node_is_live(n nodes) RETURNS boolean
    LANGUAGE sql STABLE
    RETURN n.heartbeat_at > now() - n.lease_ms * interval '1 millisecond';

-- States -------------------------------------------------------------------------------

CREATE TABLE state_transitions (
    kind text NOT NULL CHECK (kind IN ('sandbox', 'execution')),
    from_state text NOT NULL,
    to_state text NOT NULL,
    PRIMARY KEY (kind, from_state, to_state)
);
INSERT INTO state_transitions VALUES
    ('sandbox', 'queued', 'provisioning'), ('sandbox', 'queued', 'terminated'),
    ('sandbox', 'queued', 'expired'), ('sandbox', 'queued', 'failed'),
    ('sandbox', 'provisioning', 'ready'), ('sandbox', 'provisioning', 'stopping'),
    ('sandbox', 'provisioning', 'expired'), ('sandbox', 'provisioning', 'failed'),
    ('sandbox', 'ready', 'paused'), ('sandbox', 'ready', 'stopping'),
    ('sandbox', 'ready', 'expired'), ('sandbox', 'ready', 'failed'),
    ('sandbox', 'paused', 'ready'), ('sandbox', 'paused', 'stopping'),
    ('sandbox', 'paused', 'expired'), ('sandbox', 'paused', 'failed'),
    ('sandbox', 'stopping', 'terminated'), ('sandbox', 'stopping', 'expired'),
    ('sandbox', 'stopping', 'failed'),
    ('execution', 'queued', 'running'), ('execution', 'queued', 'failed'),
    ('execution', 'queued', 'cancelled'), ('execution', 'queued', 'lost'),
    ('execution', 'running', 'succeeded'), ('execution', 'running', 'failed'),
    ('execution', 'running', 'timed_out'), ('execution', 'running', 'cancelled'),
    ('execution', 'running', 'lost');

CREATE FUNCTION check_transition() RETURNS trigger
    LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF NEW.state <> 'queued' THEN
            RAISE EXCEPTION '% must begin as queued, not %', TG_ARGV[0], NEW.state
                USING ERRCODE = 'check_violation';
        END IF;
    ELSIF NEW.state <> OLD.state AND NOT EXISTS (
        SELECT FROM state_transitions t
        WHERE t.kind = TG_ARGV[0] AND t.from_state = OLD.state AND t.to_state = NEW.state) THEN
        RAISE EXCEPTION '% % may not go from % to %', TG_ARGV[0], OLD.id, OLD.state, NEW.state
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;

-- Sandboxes ----------------------------------------------------------------------------

CREATE DOMAIN end_reason AS text CHECK (VALUE IN (
    'requested', 'ttl', 'idle', 'oom', 'guest_exit', 'guest_crash', 'relay_protocol',
    'relay_lost', 'provision_timeout', 'provision_failed', 'execution_timeout',
    'execution_cancel', 'daemon_restart', 'node_lost', 'project_disabled', 'policy'));

CREATE TABLE sandboxes (
    id uuid PRIMARY KEY,
    project_id uuid NOT NULL REFERENCES projects,
    node integer NOT NULL REFERENCES nodes,
    state text NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'provisioning', 'ready',
        'paused', 'stopping', 'terminated', 'expired', 'failed')),
    reason end_reason,
    template text NOT NULL,
    cpus integer NOT NULL CHECK (cpus > 0),
    memory_mb integer NOT NULL CHECK (memory_mb > 0),
    workspace_mb integer NOT NULL CHECK (workspace_mb > 0),
    pids integer NOT NULL CHECK (pids > 0),
    ttl_seconds bigint CHECK (ttl_seconds > 0),
    idle_seconds bigint CHECK (idle_seconds > 0),
    env jsonb NOT NULL DEFAULT '{}', -- emptied at the end: values may be secrets
    labels jsonb NOT NULL DEFAULT '{}',
    egress jsonb NOT NULL DEFAULT '{"mode": "none"}',
    exclusive boolean NOT NULL DEFAULT false,
    token_id text, -- who asked; no reference: tokens may be deleted earlier
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    provisioning_at timestamptz,
    ready_at timestamptz,
    expires_at timestamptz,
    ended_at timestamptz,
    CHECK (lpad(to_hex(node), 4, '0') = left(id::text, 4)),
    CHECK ((ended_at IS NOT NULL) = (state IN ('terminated', 'expired', 'failed'))),
    CHECK (reason IS NOT NULL OR state NOT IN ('stopping', 'terminated', 'expired', 'failed')),
    CHECK (reason IS NULL OR state IN ('stopping', 'terminated', 'expired', 'failed')),
    CHECK (ready_at IS NOT NULL OR state NOT IN ('ready', 'paused')),
    CHECK (state <> 'expired' OR reason IN ('ttl', 'idle')),
    CHECK (ended_at IS NULL OR env = '{}')
);
CREATE INDEX sandboxes_live ON sandboxes (node) WHERE ended_at IS NULL;
CREATE INDEX sandboxes_live_project ON sandboxes (project_id) WHERE ended_at IS NULL;
CREATE INDEX sandboxes_list ON sandboxes (project_id, created_at DESC, id DESC);
CREATE TRIGGER sandboxes_transition BEFORE INSERT OR UPDATE OF state ON sandboxes
    FOR EACH ROW EXECUTE FUNCTION check_transition('sandbox');

-- When a ready sandbox ends for want of work, as things stand; null while something runs.
CREATE FUNCTION sandbox_idle_at(s sandboxes) RETURNS timestamptz
    LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF EXISTS (
        SELECT FROM executions e WHERE e.sandbox_id = s.id AND e.ended_at IS NULL) THEN
        RETURN NULL;
    END IF;
    RETURN greatest(s.ready_at, (SELECT max(e.ended_at) FROM executions e
        WHERE e.sandbox_id = s.id)) + s.idle_seconds * interval '1 second';
END $$;

CREATE VIEW sandbox_view AS
SELECT s.id, s.project_id, s.node, s.state, s.reason, s.template, s.cpus, s.memory_mb,
    s.workspace_mb, s.pids, s.ttl_seconds, s.idle_seconds, s.labels, s.egress, s.exclusive,
    rfc3339(s.created_at) AS created_at, rfc3339(s.ready_at) AS ready_at,
    rfc3339(s.expires_at) AS expires_at, CASE WHEN s.idle_seconds IS NOT NULL AND s.state = 'ready'
        THEN rfc3339(sandbox_idle_at(s)) END AS idle_at,
    rfc3339(s.ended_at) AS ended_at,
    elapsed_ms(s.created_at, s.provisioning_at) AS queued_ms,
    elapsed_ms(s.provisioning_at, s.ready_at) AS provision_ms,
    elapsed_ms(s.created_at, s.ready_at) AS total_ms,
    (extract(epoch FROM s.created_at) * 1000000)::bigint AS created_us
FROM sandboxes s;

-- Executions ---------------------------------------------------------------------------

CREATE TABLE executions (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    sandbox_id uuid NOT NULL REFERENCES sandboxes ON DELETE CASCADE,
    state text NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'running', 'succeeded',
        'failed', 'timed_out', 'cancelled', 'lost')),
    reason end_reason, -- why it did not end by itself
    error text CHECK (length(error) <= 500), -- why it could not be started
    spec jsonb, -- argv, env, cwd, code, stdin; emptied at the end
    timeout_ms bigint CHECK (timeout_ms > 0),
    on_timeout text NOT NULL DEFAULT 'kill' CHECK (on_timeout IN ('kill', 'terminate')),
    background boolean NOT NULL DEFAULT false,
    tag text CHECK (length(tag) <= 200),
    token_id text,
    exit_code integer CHECK (exit_code BETWEEN 0 AND 255),
    signal integer CHECK (signal BETWEEN 1 AND 64),
    -- kept bytes: head and tail joined; omitted bytes were between them, at omitted_at
    stdout bytea NOT NULL DEFAULT '',
    stdout_bytes bigint NOT NULL DEFAULT 0,
    stdout_omitted_at bigint,
    stderr bytea NOT NULL DEFAULT '',
    stderr_bytes bigint NOT NULL DEFAULT 0,
    stderr_omitted_at bigint,
    cpu_us bigint,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at timestamptz,
    ended_at timestamptz,
    CHECK ((ended_at IS NOT NULL) = (state IN ('succeeded', 'failed', 'timed_out', 'cancelled',
        'lost'))),
    CHECK (started_at IS NOT NULL OR state NOT IN ('running', 'succeeded', 'timed_out')),
    -- success is never synthesised
    CHECK ((state = 'succeeded') = (exit_code IS NOT NULL AND exit_code = 0 AND signal IS NULL
        AND state NOT IN ('timed_out', 'cancelled', 'lost', 'failed'))),
    CHECK ((spec IS NULL) = (ended_at IS NOT NULL)),
    CHECK (stdout_bytes >= octet_length(stdout) AND stderr_bytes >= octet_length(stderr))
);
CREATE INDEX executions_live ON executions (sandbox_id) WHERE ended_at IS NULL;
CREATE INDEX executions_list ON executions (sandbox_id, created_at DESC, id DESC);
CREATE TRIGGER executions_transition BEFORE INSERT OR UPDATE OF state ON executions
    FOR EACH ROW EXECUTE FUNCTION check_transition('execution');

CREATE VIEW execution_view AS
SELECT e.id, e.sandbox_id, e.state, e.reason, e.error, e.timeout_ms, e.on_timeout, e.background,
    e.tag, e.exit_code, e.signal, e.stdout, e.stdout_bytes, e.stdout_omitted_at, e.stderr,
    e.stderr_bytes, e.stderr_omitted_at, e.cpu_us, rfc3339(e.created_at) AS created_at,
    rfc3339(e.started_at) AS started_at, rfc3339(e.ended_at) AS ended_at,
    elapsed_ms(e.started_at, e.ended_at) AS duration_ms,
    (extract(epoch FROM e.created_at) * 1000000)::bigint AS created_us
FROM executions e;

-- Idempotency --------------------------------------------------------------------------

CREATE TABLE idempotency_keys (
    project_id uuid NOT NULL REFERENCES projects ON DELETE CASCADE,
    operation text NOT NULL CHECK (operation ~ '^(create|exec:[0-9a-f-]{36})$'),
    key text NOT NULL CHECK (key ~ '^[!-~]{1,255}$'),
    input_sha256 bytea NOT NULL CHECK (octet_length(input_sha256) = 32),
    resource_id uuid,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (project_id, operation, key)
);
CREATE INDEX idempotency_keys_age ON idempotency_keys (created_at);

-- Takes the key for this transaction: ('taken', null), ('replayed', resource) or
-- ('idempotency_conflict', null). A concurrent holder of the same key is waited for.
CREATE FUNCTION idempotency_take(p_project uuid, p_operation text, p_key text, p_input bytea,
    OUT outcome text, OUT resource uuid)
    LANGUAGE plpgsql AS $$
DECLARE
    k idempotency_keys;
BEGIN
    DELETE FROM idempotency_keys i
        WHERE i.project_id = p_project AND i.operation = p_operation AND i.key = p_key
            AND i.created_at < now() - interval '7 days';
    INSERT INTO idempotency_keys (project_id, operation, key, input_sha256)
        VALUES (p_project, p_operation, p_key, p_input)
        ON CONFLICT DO NOTHING;
    IF FOUND THEN
        outcome := 'taken';
        RETURN;
    END IF;
    SELECT * INTO k FROM idempotency_keys i
        WHERE i.project_id = p_project AND i.operation = p_operation AND i.key = p_key;
    IF k.input_sha256 = p_input THEN
        outcome := 'replayed';
        resource := k.resource_id;
    ELSE
        outcome := 'idempotency_conflict';
    END IF;
END $$;

-- Admission ----------------------------------------------------------------------------

-- outcome: created, replayed, or an error code's name; detail: a sentence for the client.
CREATE FUNCTION sandbox_admit(p_project uuid, p_token text, p_key text, p_input bytea,
    r jsonb, -- the normalised request: every field present
    OUT outcome text, OUT id uuid, OUT detail text)
    LANGUAGE plpgsql AS $$
DECLARE
    project projects;
    n integer;
    most integer;
    full_nodes integer[] := '{}';
    live bigint;
BEGIN
    -- The key first: a replay is answered whatever the limits say now.
    IF p_key IS NOT NULL THEN
        SELECT t.outcome, t.resource INTO outcome, id
            FROM idempotency_take(p_project, 'create', p_key, p_input) t;
        IF outcome <> 'taken' THEN
            RETURN;
        END IF;
    END IF;

    -- The project's row is the lock under which its limit is judged.
    SELECT * INTO project FROM projects p WHERE p.id = p_project FOR NO KEY UPDATE;
    IF project.id IS NULL THEN
        outcome := 'not_found';
    ELSIF project.disabled_at IS NOT NULL THEN
        outcome := 'project_disabled';
    ELSE
        SELECT count(*) INTO live FROM sandboxes s
            WHERE s.project_id = p_project AND s.ended_at IS NULL;
        IF live >= project.max_sandboxes THEN
            outcome := 'project_limit';
            detail := format('the project has %s of at most %s sandboxes at once', live,
                project.max_sandboxes);
        END IF;
    END IF;

    IF outcome IS NULL OR outcome = 'taken' THEN
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

    IF outcome IS NOT NULL AND outcome <> 'taken' THEN
        -- The key of a refused request is free again.
        IF p_key IS NOT NULL THEN
            DELETE FROM idempotency_keys i WHERE i.project_id = p_project
                AND i.operation = 'create' AND i.key = p_key;
        END IF;
        RETURN;
    END IF;

    id := (lpad(to_hex(n), 4, '0') || substr(gen_random_uuid()::text, 5))::uuid;
    INSERT INTO sandboxes (id, project_id, node, template, cpus, memory_mb, workspace_mb, pids,
            ttl_seconds, idle_seconds, env, labels, egress, exclusive, token_id, expires_at)
        VALUES (id, p_project, n, r->>'template', (r->>'cpus')::integer,
            (r->>'memoryMb')::integer, (r->>'workspaceMb')::integer, (r->>'pids')::integer,
            (r->>'ttlSeconds')::bigint, (r->>'idleSeconds')::bigint, r->'env', r->'labels',
            r->'egress', (r->>'exclusive')::boolean, p_token,
            clock_timestamp() + (r->>'ttlSeconds')::bigint * interval '1 second');
    IF p_key IS NOT NULL THEN
        UPDATE idempotency_keys i SET resource_id = sandbox_admit.id
            WHERE i.project_id = p_project AND i.operation = 'create' AND i.key = p_key;
    END IF;
    PERFORM pg_notify('paddock_' || n, 's' || id);
    outcome := 'created';
END $$;

CREATE FUNCTION execution_admit(p_project uuid, p_sandbox uuid, p_token text, p_key text,
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
                (r->>'background')::boolean, r->>'tag', p_token)
            RETURNING e.id INTO id;
        IF p_key IS NOT NULL THEN
            UPDATE idempotency_keys i SET resource_id = execution_admit.id
                WHERE i.project_id = p_project AND i.operation = op AND i.key = p_key;
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

-- A client asks for the end. Terminal and stopping sandboxes stay as they are.
CREATE FUNCTION sandbox_request_stop(p_project uuid, p_sandbox uuid) RETURNS SETOF sandbox_view
    LANGUAGE plpgsql AS $$
DECLARE
    s sandboxes;
BEGIN
    SELECT * INTO s FROM sandboxes x
        WHERE x.id = p_sandbox AND x.project_id = p_project FOR NO KEY UPDATE;
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

-- The daemon's side --------------------------------------------------------------------

-- Ends a sandbox that is not ended, and its executions. A stop in progress keeps its reason. The
-- caller holds the sandbox's row.
CREATE FUNCTION sandbox_close(p_id uuid, p_state text, p_reason text) RETURNS void
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
            state = CASE WHEN state = 'queued' AND final_reason <> 'daemon_restart'
                THEN 'cancelled' ELSE 'lost' END
        WHERE sandbox_id = p_id AND ended_at IS NULL;
    UPDATE sandboxes SET env = '{}', ended_at = clock_timestamp(), state = final_state,
            reason = final_reason
        WHERE id = p_id;
END $$;

CREATE FUNCTION node_is_current(p_node integer, p_epoch bigint) RETURNS boolean
    LANGUAGE sql STABLE
    RETURN EXISTS (SELECT FROM nodes WHERE number = p_node AND epoch = p_epoch);

-- A daemon starts: a new epoch, and everything a former one held is ended.
CREATE FUNCTION node_register(p_node integer, p_lease_ms bigint, p_version text,
    p_max_sandboxes integer, p_templates text[], p_facts jsonb) RETURNS bigint
    LANGUAGE plpgsql AS $$
DECLARE
    e bigint;
    s record;
BEGIN
    INSERT INTO nodes AS n (number, lease_ms, version, max_sandboxes, templates, facts)
        VALUES (p_node, p_lease_ms, p_version, p_max_sandboxes, p_templates, p_facts)
        ON CONFLICT (number) DO UPDATE SET epoch = n.epoch + 1, accepting = true,
            heartbeat_at = now(), started_at = now(), lease_ms = EXCLUDED.lease_ms,
            version = EXCLUDED.version, max_sandboxes = EXCLUDED.max_sandboxes,
            templates = EXCLUDED.templates, facts = EXCLUDED.facts
        RETURNING n.epoch INTO e;
    FOR s IN SELECT id FROM sandboxes
        WHERE node = p_node AND ended_at IS NULL AND state <> 'queued'
        ORDER BY id FOR NO KEY UPDATE
    LOOP
        PERFORM sandbox_close(s.id, 'failed', 'daemon_restart');
    END LOOP;
    RETURN e;
END $$;

-- The node's row is held against node_register: a claim of an old epoch cannot slip in behind
-- the look at what that epoch held.
CREATE FUNCTION sandbox_claim(p_id uuid, p_node integer, p_epoch bigint) RETURNS SETOF sandboxes
    LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM nodes n WHERE n.number = p_node AND n.epoch = p_epoch FOR SHARE;
    IF FOUND THEN
        -- What this epoch claimed already is given again: the first answer may have been lost.
        RETURN QUERY UPDATE sandboxes SET state = 'provisioning',
                provisioning_at = coalesce(provisioning_at, clock_timestamp())
            WHERE id = p_id AND node = p_node AND state IN ('queued', 'provisioning')
            RETURNING *;
    END IF;
END $$;

CREATE FUNCTION sandbox_set_ready(p_id uuid, p_node integer, p_epoch bigint)
    RETURNS SETOF sandbox_view
    LANGUAGE plpgsql AS $$
BEGIN
    UPDATE sandboxes SET state = 'ready', ready_at = clock_timestamp()
        WHERE id = p_id AND node = p_node AND state = 'provisioning'
            AND node_is_current(p_node, p_epoch);
    RETURN QUERY SELECT * FROM sandbox_view v WHERE v.id = p_id;
END $$;

-- The daemon decides to stop (ttl, idle, execution_timeout …). ttl and idle are judged here, under
-- the row's lock, under which executions are admitted, too: a sandbox with new work is not idle.
CREATE FUNCTION sandbox_stop(p_id uuid, p_node integer, p_epoch bigint, p_reason text)
    RETURNS SETOF sandbox_view
    LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM sandboxes s WHERE s.id = p_id FOR NO KEY UPDATE;
    UPDATE sandboxes SET state = 'stopping', reason = p_reason
        WHERE id = p_id AND node = p_node AND state IN ('provisioning', 'ready', 'paused')
            AND node_is_current(p_node, p_epoch)
            AND (p_reason <> 'ttl' OR expires_at <= clock_timestamp())
            AND (p_reason <> 'idle' OR NOT EXISTS (SELECT FROM executions e
                WHERE e.sandbox_id = p_id AND e.ended_at IS NULL));
    RETURN QUERY SELECT * FROM sandbox_view v WHERE v.id = p_id;
END $$;

CREATE FUNCTION sandbox_end(p_id uuid, p_node integer, p_epoch bigint, p_state text,
    p_reason text) RETURNS SETOF sandbox_view
    LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM sandboxes s WHERE s.id = p_id AND s.node = p_node AND s.ended_at IS NULL
        AND node_is_current(p_node, p_epoch) FOR NO KEY UPDATE;
    IF FOUND THEN
        PERFORM sandbox_close(p_id, p_state, p_reason);
    END IF;
    RETURN QUERY SELECT * FROM sandbox_view v WHERE v.id = p_id;
END $$;

-- Never twice, unlike a sandbox's: what may have run is not run again. The claim need not survive a
-- crash of the server, so it is not waited for until it is on disk: the daemon that holds the
-- execution goes on, and execution_finish takes it from either state.
CREATE FUNCTION execution_claim(p_id uuid, p_node integer, p_epoch bigint) RETURNS SETOF executions
    LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    RETURN QUERY UPDATE executions e SET state = 'running', started_at = clock_timestamp()
        FROM sandboxes s
        WHERE e.id = p_id AND e.state = 'queued' AND s.id = e.sandbox_id AND s.node = p_node
            AND s.state = 'ready' AND node_is_current(p_node, p_epoch)
        RETURNING e.*;
END $$;

-- The result of a running execution. Zero rows changed (ended meanwhile, old epoch) is no
-- error: the row as it is comes back.
CREATE FUNCTION execution_finish(p_id uuid, p_node integer, p_epoch bigint, p_state text,
    p_reason text, p_error text, p_exit_code integer, p_signal integer,
    p_stdout bytea, p_stdout_bytes bigint, p_stdout_omitted_at bigint,
    p_stderr bytea, p_stderr_bytes bigint, p_stderr_omitted_at bigint, p_cpu_us bigint)
    RETURNS SETOF execution_view
    LANGUAGE plpgsql AS $$
DECLARE
    ended_sandbox uuid;
BEGIN
    -- The sandbox first, like everyone who locks both.
    IF p_state = 'timed_out' THEN
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
            stderr_omitted_at = p_stderr_omitted_at, cpu_us = p_cpu_us, spec = NULL,
            ended_at = clock_timestamp()
        FROM sandboxes s
        WHERE e.id = p_id AND e.ended_at IS NULL AND s.id = e.sandbox_id AND s.node = p_node
            AND node_is_current(p_node, p_epoch);
    -- With the result, not after it: neither a crash nor a quick DELETE may come between.
    IF FOUND AND ended_sandbox IS NOT NULL THEN
        PERFORM sandbox_stop(ended_sandbox, p_node, p_epoch, 'execution_timeout');
    END IF;
    RETURN QUERY SELECT * FROM execution_view v WHERE v.id = p_id;
END $$;
