-- +goose Up
-- Audits of fabrics, what they find, and what is done about it.

-- What an admin decides about a fabric's keys and audits. No row: nothing was decided, and it was never audited.
CREATE TABLE fabric_watch (
    fabric_id      uuid PRIMARY KEY REFERENCES fabric,
    reserved_pkeys jsonb NOT NULL DEFAULT '[]', -- numbers within the managed range that are somebody else's
    audit_due_at   timestamptz,
    audit_asked_by text NOT NULL DEFAULT ''     -- who wants it before its time
);

ALTER TABLE drift
    ADD COLUMN kind       text NOT NULL DEFAULT 'unexpected_key' CHECK (kind IN ('fail_open', 'configuration', 'unexpected_key', 'missing_key', 'misplaced_key', 'unknown_port', 'unreadable')),
    ADD COLUMN pkey       integer NOT NULL DEFAULT 0, -- the base that it is about; 0: none
    ADD COLUMN seen_at    timestamptz,                -- when it was last seen
    ADD COLUMN attempts   integer NOT NULL DEFAULT 0, -- repairs that were tried
    ADD COLUMN tried_at   timestamptz,
    ADD COLUMN gave_up_at timestamptz;                -- repairs did not help; a person must
CREATE INDEX drift_of_fabric ON drift (fabric_id) WHERE ended_at IS NULL;

-- Keys outside the managed range, or reserved ones, as last seen on a port. They are never touched, and take room in its table.
CREATE TABLE foreign_pkey (
    fabric_id uuid NOT NULL REFERENCES fabric,
    port_guid text NOT NULL,
    pkey      integer NOT NULL,
    onset     timestamptz NOT NULL,
    PRIMARY KEY (fabric_id, port_guid, pkey)
);

CREATE TABLE fabric_audit (
    operation_id uuid PRIMARY KEY REFERENCES operation,
    fabric_id    uuid NOT NULL REFERENCES fabric,
    asked_by     text NOT NULL DEFAULT '', -- '': it was its time
    asked_at     timestamptz NOT NULL,
    ended_at     timestamptz NOT NULL,
    verdict      text NOT NULL CHECK (verdict IN ('clean', 'deviating', 'unknown')),
    ports        integer NOT NULL,
    clean        integer NOT NULL,
    deviating    integer NOT NULL,
    unreadable   integer NOT NULL,
    strangers    integer NOT NULL,
    foreign_keys jsonb NOT NULL DEFAULT '[]',
    detail       text NOT NULL DEFAULT ''
);
CREATE INDEX fabric_audit_latest ON fabric_audit (fabric_id, ended_at DESC);

GRANT SELECT, INSERT, UPDATE, DELETE ON fabric_watch, foreign_pkey, fabric_audit TO leasehold_platform;

-- +goose Down
DROP TABLE fabric_audit, foreign_pkey, fabric_watch;
DROP INDEX drift_of_fabric;
ALTER TABLE drift DROP COLUMN kind, DROP COLUMN pkey, DROP COLUMN seen_at, DROP COLUMN attempts, DROP COLUMN tried_at, DROP COLUMN gave_up_at;
