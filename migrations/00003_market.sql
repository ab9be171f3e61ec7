-- +goose Up
-- What is sold and for how much.

CREATE TABLE instance_type (
    id                 uuid PRIMARY KEY,
    name               text NOT NULL UNIQUE CHECK (name ~ '^[a-z0-9][a-z0-9.-]{0,62}$'), -- h100-sxm.8x.ndr
    title              text NOT NULL,
    hardware           text NOT NULL, -- node.hardware that it places on
    mode               text NOT NULL CHECK (mode IN ('bare_metal', 'shared')),
    slot_width         integer NOT NULL CHECK (slot_width > 0),
    -- Permitted starts. slot_stride > 0: every multiple of it; else 8i + each of bay_starts (MIG placements).
    slot_stride        integer NOT NULL DEFAULT 0 CHECK (slot_stride >= 0),
    bay_starts         integer[] NOT NULL DEFAULT '{}',
    gpu_count          integer NOT NULL CHECK (gpu_count >= 0), -- 0: a slice of one GPU
    mig_profile        text NOT NULL DEFAULT '',
    with_hca           boolean NOT NULL DEFAULT false, -- comes with InfiniBand and a partition
    gpu_model          text NOT NULL,
    gpu_memory_bytes   bigint NOT NULL, -- per instance
    rated_per          text NOT NULL CHECK (rated_per IN ('gpu', 'instance')),
    lead_seconds       integer NOT NULL CHECK (lead_seconds >= 0),
    turnaround_seconds integer NOT NULL CHECK (turnaround_seconds >= 0),
    image              text NOT NULL DEFAULT '',
    retired_at         timestamptz,
    version            bigint NOT NULL DEFAULT 1,
    created_at         timestamptz NOT NULL,
    CHECK ((slot_stride > 0) <> (cardinality(bay_starts) > 0)),
    CHECK ((gpu_count = 0) = (mig_profile <> ''))
);

CREATE TABLE price_version (
    id                   uuid PRIMARY KEY,
    instance_type_id     uuid NOT NULL REFERENCES instance_type,
    site_id              uuid NOT NULL REFERENCES site,
    currency             text NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
    rate_micros          bigint NOT NULL CHECK (rate_micros >= 0), -- micro-units per GPU-hour (or instance-hour)
    valid                tstzrange NOT NULL CHECK (NOT isempty(valid)),
    min_duration_seconds integer NOT NULL CHECK (min_duration_seconds > 0),
    max_duration_seconds integer NOT NULL CHECK (max_duration_seconds >= min_duration_seconds),
    notice_seconds       integer NOT NULL DEFAULT 0, -- a reserved lease is booked at least this long before its start
    -- Refund of the unused part by how long before the start it is cancelled: [{"notice_seconds": 86400, "refund_bps": 10000}, …],
    -- longest notice first; and what an early termination gives back of the unused time.
    refund_schedule      jsonb NOT NULL DEFAULT '[]',
    early_refund_bps     integer NOT NULL DEFAULT 0 CHECK (early_refund_bps BETWEEN 0 AND 10000),
    created_at           timestamptz NOT NULL,
    EXCLUDE USING gist (instance_type_id WITH =, site_id WITH =, currency WITH =, valid WITH &&)
);

CREATE TABLE quote (
    id               uuid PRIMARY KEY,
    org_id           uuid NOT NULL REFERENCES organization,
    project_id       uuid NOT NULL,
    instance_type_id uuid NOT NULL REFERENCES instance_type,
    site_id          uuid NOT NULL REFERENCES site,
    price_version_id uuid NOT NULL REFERENCES price_version,
    class            text NOT NULL CHECK (class IN ('reserved', 'on_demand', 'flexible', 'spot')),
    instances        integer NOT NULL CHECK (instances > 0),
    topology         text NOT NULL DEFAULT 'any' CHECK (topology IN ('any', 'same_leaf', 'same_pod')),
    start_at         timestamptz NOT NULL,
    end_at           timestamptz NOT NULL CHECK (end_at > start_at),
    currency         text NOT NULL,
    rate_micros      bigint NOT NULL,
    tax_rate_bps     integer NOT NULL,
    subtotal_minor   bigint NOT NULL CHECK (subtotal_minor >= 0),
    tax_minor        bigint NOT NULL CHECK (tax_minor >= 0),
    total_minor      bigint NOT NULL CHECK (total_minor = subtotal_minor + tax_minor), -- the worst case; what is held
    terms            jsonb NOT NULL, -- every rule that the customer saw: refunds, notice, failure policy
    terms_digest     text NOT NULL,
    placement        jsonb NOT NULL, -- the candidate that the search found; not a promise
    expires_at       timestamptz NOT NULL,
    lease_id         uuid UNIQUE,    -- set when it was used; a quote books once
    created_by       text NOT NULL,
    created_at       timestamptz NOT NULL,
    FOREIGN KEY (org_id, project_id) REFERENCES project (org_id, id)
);
CREATE INDEX quote_org ON quote (org_id, created_at DESC);

-- +goose Down
DROP TABLE quote, price_version, instance_type;
