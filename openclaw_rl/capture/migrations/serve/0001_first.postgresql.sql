CREATE TABLE IF NOT EXISTS blocks (
    hash BYTEA NOT NULL,
    epoch INTEGER NOT NULL,
    parent BYTEA,
    ids BYTEA NOT NULL,
    PRIMARY KEY (hash)
);

CREATE TABLE IF NOT EXISTS bodies (
    hash BYTEA NOT NULL,
    epoch INTEGER NOT NULL,
    body BYTEA NOT NULL,
    PRIMARY KEY (hash)
);

CREATE TABLE IF NOT EXISTS counters (
    name TEXT NOT NULL,
    value BIGINT NOT NULL,
    PRIMARY KEY (name)
);

CREATE TABLE IF NOT EXISTS deliveries (
    turn BIGINT NOT NULL,
    delivered BOOLEAN NOT NULL,
    at DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (turn)
);

CREATE TABLE IF NOT EXISTS events (
    seq BIGINT NOT NULL,
    turn BIGINT NOT NULL,
    kind TEXT NOT NULL,
    once TEXT,
    at DOUBLE PRECISION NOT NULL,
    data BYTEA NOT NULL,
    PRIMARY KEY (seq),
    UNIQUE (turn, once)
);

CREATE TABLE IF NOT EXISTS nodes (
    hash BYTEA NOT NULL,
    epoch INTEGER NOT NULL,
    parent BYTEA,
    body BYTEA NOT NULL,
    PRIMARY KEY (hash)
);

CREATE TABLE IF NOT EXISTS sessions (
    seq BIGINT NOT NULL,
    id TEXT NOT NULL,
    "user" TEXT NOT NULL,
    opened_at DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (seq),
    UNIQUE (id)
);

CREATE TABLE IF NOT EXISTS turn_keys (
    key BYTEA NOT NULL,
    turn BIGINT NOT NULL,
    PRIMARY KEY (key)
);

CREATE TABLE IF NOT EXISTS turns (
    seq BIGINT NOT NULL,
    id TEXT NOT NULL,
    session BIGINT NOT NULL,
    "user" TEXT NOT NULL,
    dialect TEXT NOT NULL,
    kind TEXT NOT NULL,
    continues TEXT,
    created_at DOUBLE PRECISION NOT NULL,
    policy_version INTEGER NOT NULL,
    finish_reason TEXT NOT NULL,
    engine_finish TEXT,
    prompt_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    node BYTEA,
    tools BYTEA,
    params BYTEA NOT NULL,
    reply BYTEA NOT NULL,
    block BYTEA,
    sampling TEXT NOT NULL,
    timings TEXT NOT NULL,
    lookup_keys TEXT NOT NULL,
    prompt_tail BYTEA NOT NULL,
    ids BYTEA NOT NULL,
    logprobs BYTEA NOT NULL,
    sampled_logprobs BYTEA NOT NULL,
    forced BYTEA NOT NULL,
    top_ids BYTEA NOT NULL,
    top_logprobs BYTEA NOT NULL,
    PRIMARY KEY (seq),
    UNIQUE (id)
);

CREATE INDEX IF NOT EXISTS turns_by_session ON turns (session, seq);

CREATE INDEX IF NOT EXISTS turns_by_time ON turns (created_at);

INSERT INTO counters (name, value) VALUES ('generation', 0);
