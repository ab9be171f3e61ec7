-- +goose Up
-- What organizations are told, and where.

-- Written in the transaction of what it tells of. position is the order of writing; the courier gives the sequence later, in that order
-- and without gaps, since a number that is drawn by the writer would make all of an organization's transactions wait for each other.
CREATE TABLE event (
    id               uuid PRIMARY KEY,
    org_id           uuid NOT NULL REFERENCES organization,
    position         bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    sequence         bigint, -- NULL: not numbered yet
    type             text NOT NULL,
    subject          text NOT NULL DEFAULT '',
    subject_sequence bigint NOT NULL DEFAULT 0,
    only_endpoint_id uuid, -- a test: nobody else is told
    at               timestamptz NOT NULL,
    data             jsonb NOT NULL,
    UNIQUE (org_id, sequence)
);
CREATE INDEX event_fresh ON event (position) WHERE sequence IS NULL;
CREATE INDEX event_at ON event (at);

CREATE TABLE event_counter (
    org_id uuid PRIMARY KEY REFERENCES organization,
    last   bigint NOT NULL
);

CREATE TABLE webhook_endpoint (
    id             uuid PRIMARY KEY,
    org_id         uuid NOT NULL REFERENCES organization,
    url            text NOT NULL CHECK (length(url) <= 2048),
    description    text NOT NULL DEFAULT '',
    types          text[] NOT NULL,
    disabled       text NOT NULL DEFAULT '' CHECK (disabled IN ('', 'asked', 'failing', 'gone')),
    disabled_at    timestamptz,
    failing_since  timestamptz,
    secret         bytea NOT NULL, -- sealed with the key of the installation's files
    previous       bytea,
    previous_until timestamptz,
    created_by     text NOT NULL,
    created_at     timestamptz NOT NULL,
    deleted_at     timestamptz,
    version        bigint NOT NULL DEFAULT 1,
    UNIQUE (org_id, id)
);
CREATE INDEX webhook_endpoint_org ON webhook_endpoint (org_id) WHERE deleted_at IS NULL;

CREATE TABLE webhook_delivery (
    id            uuid PRIMARY KEY,
    org_id        uuid NOT NULL,
    endpoint_id   uuid NOT NULL,
    event_id      uuid NOT NULL REFERENCES event ON DELETE CASCADE,
    state         text NOT NULL CHECK (state IN ('pending', 'delivered', 'failed')),
    tries         integer NOT NULL DEFAULT 0,
    claim         bigint NOT NULL DEFAULT 0, -- counts claims for ever: a late worker's news name an older one
    claimed_until timestamptz,
    next_at       timestamptz NOT NULL,
    created_at    timestamptz NOT NULL,
    finished_at   timestamptz,
    UNIQUE (endpoint_id, event_id),
    -- Another organization's endpoint is told nothing, whatever the code does.
    FOREIGN KEY (org_id, endpoint_id) REFERENCES webhook_endpoint (org_id, id)
);
CREATE INDEX webhook_delivery_due ON webhook_delivery (org_id, endpoint_id, next_at) WHERE state = 'pending';
CREATE INDEX webhook_delivery_claimed ON webhook_delivery (org_id, endpoint_id, claimed_until) WHERE claimed_until IS NOT NULL;
CREATE INDEX webhook_delivery_event ON webhook_delivery (event_id);

CREATE TABLE webhook_attempt (
    delivery_id uuid NOT NULL REFERENCES webhook_delivery ON DELETE CASCADE,
    number      bigint NOT NULL,
    org_id      uuid NOT NULL,
    at          timestamptz NOT NULL,
    took_ms     bigint NOT NULL,
    status      integer NOT NULL, -- 0: there was no answer
    error       text NOT NULL DEFAULT '',
    body        text NOT NULL DEFAULT '', -- the answer's beginning
    PRIMARY KEY (delivery_id, number)
);

-- +goose StatementBegin
DO $$
DECLARE
    t text;
BEGIN
    FOREACH t IN ARRAY ARRAY['event', 'event_counter', 'webhook_endpoint', 'webhook_delivery', 'webhook_attempt'] LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
        EXECUTE format('CREATE POLICY tenant ON %I TO leasehold_tenant USING (org_id = current_org()) WITH CHECK (org_id = current_org())', t);
        EXECUTE format('CREATE POLICY platform ON %I TO leasehold_platform USING (true) WITH CHECK (true)', t);
        EXECUTE format('GRANT SELECT ON %I TO leasehold_tenant', t);
        EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %I TO leasehold_platform', t);
    END LOOP;
END
$$;
-- +goose StatementEnd
GRANT INSERT ON event, webhook_endpoint, webhook_delivery TO leasehold_tenant;
GRANT UPDATE ON webhook_endpoint, webhook_delivery TO leasehold_tenant;

-- +goose Down
DROP TABLE webhook_attempt, webhook_delivery, webhook_endpoint, event_counter, event;
