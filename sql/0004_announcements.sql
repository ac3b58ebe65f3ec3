-- Changes of sandboxes and executions are announced without holding up the admissions of others.
--
-- Whoever announces something holds one lock of the whole server until its commit is over. A commit
-- that waits for the disk makes all the others wait for their turn at it, one by one. So these do as
-- sandbox_admit and execution_admit do: the handler waits for the disk by itself (FLUSH), without a
-- lock, together with others. Should the server crash before that, nobody was told of the change, and
-- the daemon, which looks at its rows when it reconnects, goes on with what they say.

CREATE OR REPLACE FUNCTION sandbox_update(p_project uuid, p_sandbox uuid, p_who jsonb, r jsonb,
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
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM pg_notify('paddock_' || s.node, 's' || s.id);
    id := s.id;
    outcome := 'updated';
END $$;

CREATE OR REPLACE FUNCTION execution_request_cancel(p_project uuid, p_sandbox uuid, p_execution uuid,
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
        ELSE
            -- Of one that runs, its end is what counts, and that is told when it is on disk.
            PERFORM set_config('synchronous_commit', 'off', true);
        END IF;
        -- Also of what waited: somebody may wait for it, and a claim that a crash of the server
        -- forgot may have begun it.
        PERFORM pg_notify('paddock_' || s.node, 'c' || e.id);
    END IF;
    RETURN QUERY SELECT * FROM execution_view v
        WHERE v.id = p_execution AND v.sandbox_id = p_sandbox;
END $$;
