"""The tables of the dead letters."""

from typing import Final

__all__ = ["LETTERS_SCHEMA", "LETTERS_VERSION"]

LETTERS_VERSION: Final = 1

# The tallies are kept by the database itself, so they are right whatever is done in between.
LETTERS_SCHEMA: Final = f"""
CREATE TABLE letters (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    dead_topic TEXT NOT NULL,
    topic TEXT NOT NULL,
    channel TEXT NOT NULL,
    node TEXT NOT NULL,
    message TEXT NOT NULL,
    reason TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    first_ns INTEGER NOT NULL,
    last_ns INTEGER NOT NULL,
    client TEXT NOT NULL,
    body BLOB NOT NULL,
    fed INTEGER NOT NULL DEFAULT 0,
    replay INTEGER NOT NULL DEFAULT 0,
    UNIQUE (topic, channel, message)
);
CREATE INDEX by_channel ON letters (topic, channel, number);
CREATE INDEX to_feed ON letters (dead_topic, number) WHERE fed = 0;
CREATE INDEX to_replay ON letters (number) WHERE replay = 1;
CREATE TABLE tallies (
    topic TEXT NOT NULL,
    channel TEXT NOT NULL,
    dead_topic TEXT NOT NULL,
    count INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    unfed INTEGER NOT NULL,
    PRIMARY KEY (topic, channel, dead_topic)
);
CREATE TRIGGER added AFTER INSERT ON letters BEGIN
    INSERT INTO tallies VALUES (new.topic, new.channel, new.dead_topic, 1, length(new.body), 1)
    ON CONFLICT DO UPDATE SET
        count = count + 1, bytes = bytes + length(new.body), unfed = unfed + 1;
END;
CREATE TRIGGER removed AFTER DELETE ON letters BEGIN
    UPDATE tallies SET
        count = count - 1, bytes = bytes - length(old.body), unfed = unfed - (old.fed = 0)
    WHERE (topic, channel, dead_topic) = (old.topic, old.channel, old.dead_topic);
END;
CREATE TRIGGER fed AFTER UPDATE OF fed ON letters WHEN new.fed <> old.fed BEGIN
    UPDATE tallies SET unfed = unfed - new.fed + old.fed
    WHERE (topic, channel, dead_topic) = (old.topic, old.channel, old.dead_topic);
END;
PRAGMA user_version = {LETTERS_VERSION};
"""
