-- A node takes no work while its disk is full. Of a template that only such a node offers, a request
-- may be made again; and one node that begins to take work meanwhile must not turn "nobody does" into
-- "nobody offers it", which no client asks for again.

-- outcome: created, replayed, or an error code's name; detail: a sentence for the client.
CREATE OR REPLACE FUNCTION sandbox_admit(p_project uuid, p_who jsonb, p_key text, p_input bytea,
    r jsonb, -- the normalised request: every field present, but lifetimes that were left open
    OUT outcome text, OUT id uuid, OUT detail text)
    LANGUAGE plpgsql AS $$
DECLARE
    project projects;
    n integer;
    most integer;
    full_nodes integer[] := '{}';
    live bigint;
    taking boolean;
    offered boolean;
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
            SELECT coalesce(bool_or(m.accepting), false),
                    coalesce(bool_or((r->>'template') = ANY (m.templates)), false)
                INTO taking, offered FROM nodes m WHERE node_is_live(m);
            IF taking AND NOT offered THEN
                outcome := 'unsatisfiable';
                detail := format('no node offers the template "%s"', r->>'template');
            ELSE
                -- Or one began to since it was looked for.
                outcome := 'daemon_unavailable';
                detail := CASE WHEN taking
                    THEN format('no node that offers the template "%s" is taking work', r->>'template')
                    ELSE 'no node is taking work' END;
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
