-- A daemon that starts takes over what its predecessor's keeper still holds: those rows stay.

DROP FUNCTION node_register(integer, bigint, text, integer, text[], jsonb);

-- A daemon starts: a new epoch. Of what a former one held, the sandboxes in p_held still have a
-- guest, or their end was seen: the daemon looks at each of them next. The others are ended; so is
-- what was being provisioned, of which nobody knows how far it came.
CREATE FUNCTION node_register(p_node integer, p_lease_ms bigint, p_version text,
    p_max_sandboxes integer, p_templates text[], p_facts jsonb, p_held uuid[]) RETURNS bigint
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
            AND (state = 'provisioning' OR id <> ALL (p_held))
        ORDER BY id FOR NO KEY UPDATE
    LOOP
        PERFORM sandbox_close(s.id, 'failed', 'daemon_restart');
    END LOOP;
    RETURN e;
END $$;
