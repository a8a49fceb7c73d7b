CREATE TABLE attempts (
    turn_id TEXT NOT NULL PRIMARY KEY,
    scope TEXT NOT NULL DEFAULT 'everyone',
    group_id TEXT NOT NULL,
    group_size INTEGER NOT NULL,
    reward DOUBLE PRECISION,
    failure TEXT NOT NULL,
    policy_version INTEGER NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    settled INTEGER NOT NULL
);
CREATE INDEX attempts_by_group ON attempts (settled, scope, group_id);
CREATE INDEX attempts_by_time ON attempts (scope, created_at);
