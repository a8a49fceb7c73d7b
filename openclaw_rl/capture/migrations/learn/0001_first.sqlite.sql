CREATE TABLE IF NOT EXISTS judge_tasks (
    turn_id TEXT NOT NULL,
    created_at DOUBLE NOT NULL,
    ready TEXT,
    attempts INTEGER NOT NULL,
    next_try_at DOUBLE NOT NULL,
    error TEXT,
    PRIMARY KEY (turn_id)
);

CREATE INDEX IF NOT EXISTS judge_tasks_by_time ON judge_tasks (ready, next_try_at);

CREATE TABLE IF NOT EXISTS learn_marks (
    name TEXT NOT NULL,
    value DOUBLE NOT NULL,
    PRIMARY KEY (name)
);

CREATE TABLE IF NOT EXISTS policies (
    version INTEGER NOT NULL,
    parent INTEGER,
    status TEXT NOT NULL,
    created_at DOUBLE NOT NULL,
    published_at DOUBLE,
    num_samples INTEGER NOT NULL,
    config_hash TEXT NOT NULL,
    metrics TEXT NOT NULL,
    gate TEXT NOT NULL,
    PRIMARY KEY (version)
);

CREATE INDEX IF NOT EXISTS policies_by_status ON policies (status);

CREATE TABLE IF NOT EXISTS samples (
    turn_id TEXT NOT NULL,
    verdict INTEGER NOT NULL,
    user TEXT NOT NULL,
    created_at DOUBLE NOT NULL,
    policy_version INTEGER NOT NULL,
    score INTEGER NOT NULL,
    status TEXT NOT NULL,
    reason TEXT,
    strength DOUBLE NOT NULL,
    step INTEGER,
    data BLOB,
    PRIMARY KEY (turn_id)
);

CREATE INDEX IF NOT EXISTS samples_by_status ON samples (status, created_at);

CREATE INDEX IF NOT EXISTS samples_by_step ON samples (step);

CREATE INDEX IF NOT EXISTS samples_by_time ON samples (created_at, policy_version, score);

CREATE INDEX IF NOT EXISTS samples_by_user ON samples (user, created_at, policy_version, score);

CREATE INDEX IF NOT EXISTS samples_by_version ON samples (policy_version, created_at);

CREATE TABLE IF NOT EXISTS swaps (
    seq INTEGER NOT NULL,
    version INTEGER NOT NULL,
    at DOUBLE NOT NULL,
    why TEXT NOT NULL,
    PRIMARY KEY (seq)
);

CREATE TABLE IF NOT EXISTS verdicts (
    seq INTEGER NOT NULL,
    turn_id TEXT NOT NULL,
    score INTEGER NOT NULL,
    confidence DOUBLE NOT NULL,
    source TEXT NOT NULL,
    votes TEXT NOT NULL,
    hints TEXT NOT NULL,
    trainable BOOLEAN NOT NULL,
    reason TEXT NOT NULL,
    judged_at DOUBLE NOT NULL,
    PRIMARY KEY (seq)
);

CREATE INDEX IF NOT EXISTS ix_verdicts_turn_id ON verdicts (turn_id);
