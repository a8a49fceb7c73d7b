CREATE TABLE waves (
    id BIGSERIAL NOT NULL PRIMARY KEY,
    scope TEXT NOT NULL DEFAULT 'everyone',
    "user" TEXT NOT NULL,
    since DOUBLE PRECISION NOT NULL,
    until DOUBLE PRECISION NOT NULL,
    number INTEGER NOT NULL,
    state TEXT NOT NULL,
    decided_at DOUBLE PRECISION
);
CREATE INDEX waves_by_user ON waves (scope, "user", state);
