-- +goose Up
-- Plumbing: the outbox, idempotency records, rate limits, the audit log.

-- Effects that must follow a commit. Claimed with SKIP LOCKED; there is no cursor, since sequence order is not commit order.
CREATE TABLE outbox (
    id           uuid PRIMARY KEY,
    topic        text NOT NULL, -- lease.nudge, fabric.changed, notify.email, …
    key          text NOT NULL, -- e.g. the lease's id
    payload      jsonb NOT NULL DEFAULT '{}',
    available_at timestamptz NOT NULL,
    attempts     integer NOT NULL DEFAULT 0,
    last_error   text NOT NULL DEFAULT '',
    created_at   timestamptz NOT NULL,
    done_at      timestamptz
);
CREATE INDEX outbox_due ON outbox (available_at) WHERE done_at IS NULL;

CREATE TABLE idempotency_record (
    org_id       uuid NOT NULL REFERENCES organization,
    actor        text NOT NULL,
    key          text NOT NULL CHECK (length(key) BETWEEN 1 AND 255),
    method       text NOT NULL,
    path         text NOT NULL,
    body_hash    bytea NOT NULL,
    status       integer NOT NULL,
    header       jsonb NOT NULL DEFAULT '{}',
    body         bytea NOT NULL, -- secrets removed: a replay never shows one again
    created_at   timestamptz NOT NULL,
    PRIMARY KEY (org_id, actor, key)
);
CREATE INDEX idempotency_record_age ON idempotency_record (created_at);

-- Token buckets shared by all replicas (GCRA: the theoretical arrival time).
CREATE UNLOGGED TABLE rate_limit (
    key         text PRIMARY KEY,
    arrival_at  timestamptz NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE audit_event (
    id         uuid PRIMARY KEY,
    org_id     uuid REFERENCES organization, -- NULL: the operator's own
    actor      text NOT NULL,
    action     text NOT NULL,
    target     text NOT NULL DEFAULT '',
    before     jsonb,
    after      jsonb,
    request_id text NOT NULL DEFAULT '',
    at         timestamptz NOT NULL
);
CREATE INDEX audit_event_org ON audit_event (org_id, at DESC);

-- +goose Down
DROP TABLE audit_event, rate_limit, idempotency_record, outbox;
