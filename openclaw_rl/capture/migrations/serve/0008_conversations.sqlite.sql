CREATE TABLE conversations (
    id TEXT NOT NULL,
    "user" TEXT NOT NULL,
    created_at DOUBLE NOT NULL,
    used_at DOUBLE NOT NULL,
    metadata BLOB NOT NULL,
    PRIMARY KEY (id)
);

CREATE INDEX conversations_by_user ON conversations ("user");

CREATE TABLE conversation_items (
    conversation TEXT NOT NULL,
    seq INTEGER NOT NULL,
    id TEXT NOT NULL,
    turn TEXT,
    item BLOB NOT NULL,
    PRIMARY KEY (conversation, seq)
);

CREATE INDEX conversation_items_by_turn ON conversation_items (turn);
