CREATE TABLE IF NOT EXISTS blocks (
    hash BLOB NOT NULL,
    epoch INTEGER NOT NULL,
    parent BLOB,
    ids BLOB NOT NULL,
    PRIMARY KEY (hash)
);

CREATE TABLE IF NOT EXISTS bodies (
    hash BLOB NOT NULL,
    epoch INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (hash)
);

CREATE TABLE IF NOT EXISTS counters (
    name TEXT NOT NULL,
    value INTEGER NOT NULL,
    PRIMARY KEY (name)
);

CREATE TABLE IF NOT EXISTS deliveries (
    turn INTEGER NOT NULL,
    delivered BOOLEAN NOT NULL,
    at DOUBLE NOT NULL,
    PRIMARY KEY (turn)
);

CREATE TABLE IF NOT EXISTS events (
    seq INTEGER NOT NULL,
    turn INTEGER NOT NULL,
    kind TEXT NOT NULL,
    once TEXT,
    at DOUBLE NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (seq),
    UNIQUE (turn, once)
);

CREATE TABLE IF NOT EXISTS nodes (
    hash BLOB NOT NULL,
    epoch INTEGER NOT NULL,
    parent BLOB,
    body BLOB NOT NULL,
    PRIMARY KEY (hash)
)
 WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS sessions (
    seq INTEGER NOT NULL,
    id TEXT NOT NULL,
    user TEXT NOT NULL,
    opened_at DOUBLE NOT NULL,
    PRIMARY KEY (seq),
    UNIQUE (id)
);

CREATE TABLE IF NOT EXISTS turn_keys (
    "key" BLOB NOT NULL,
    turn INTEGER NOT NULL,
    PRIMARY KEY ("key")
)
 WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS turns (
    seq INTEGER NOT NULL,
    id TEXT NOT NULL,
    session INTEGER NOT NULL,
    user TEXT NOT NULL,
    dialect TEXT NOT NULL,
    kind TEXT NOT NULL,
    continues TEXT,
    created_at DOUBLE NOT NULL,
    policy_version INTEGER NOT NULL,
    finish_reason TEXT NOT NULL,
    engine_finish TEXT,
    prompt_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    node BLOB,
    tools BLOB,
    params BLOB NOT NULL,
    reply BLOB NOT NULL,
    block BLOB,
    sampling TEXT NOT NULL,
    timings TEXT NOT NULL,
    lookup_keys TEXT NOT NULL,
    prompt_tail BLOB NOT NULL,
    ids BLOB NOT NULL,
    logprobs BLOB NOT NULL,
    sampled_logprobs BLOB NOT NULL,
    forced BLOB NOT NULL,
    top_ids BLOB NOT NULL,
    top_logprobs BLOB NOT NULL,
    PRIMARY KEY (seq),
    UNIQUE (id)
);

CREATE INDEX IF NOT EXISTS turns_by_session ON turns (session, seq);

CREATE INDEX IF NOT EXISTS turns_by_time ON turns (created_at);

INSERT INTO counters (name, value) VALUES ('generation', 0);
