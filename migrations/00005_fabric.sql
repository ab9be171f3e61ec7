-- +goose Up
-- Isolation: partitions, who is a member, and what was proved.

CREATE TABLE partition (
    id             uuid PRIMARY KEY,
    org_id         uuid NOT NULL REFERENCES organization,
    fabric_id      uuid NOT NULL REFERENCES fabric,
    lease_id       uuid NOT NULL REFERENCES lease,
    pkey           integer NOT NULL CHECK (pkey BETWEEN 1 AND 32766), -- the base, without the membership bit
    state          text NOT NULL CHECK (state IN ('desired', 'programmed', 'verified', 'draining', 'clear', 'quarantined', 'free')),
    clear_seen     integer NOT NULL DEFAULT 0, -- clean sweeps of all former members since it drained
    reusable_after timestamptz,
    reason         text NOT NULL DEFAULT '', -- why it is not where it should be, in words; '': nothing is known to be wrong
    -- The operation whose observation showed the present state: the first witness's word, with its signature.
    witness_id     uuid REFERENCES operation,
    created_at     timestamptz NOT NULL,
    updated_at     timestamptz NOT NULL
);
CREATE UNIQUE INDEX partition_pkey_in_use ON partition (fabric_id, pkey) WHERE state <> 'free';
CREATE UNIQUE INDEX partition_lease ON partition (lease_id) WHERE state <> 'free';

-- A port is a member from joined_at until left_at was verified.
CREATE TABLE partition_member (
    partition_id  uuid NOT NULL REFERENCES partition,
    hca_port_id   uuid NOT NULL REFERENCES hca_port,
    allocation_id uuid NOT NULL REFERENCES allocation,
    org_id        uuid NOT NULL REFERENCES organization,
    wanted        boolean NOT NULL DEFAULT true, -- false: it is to leave
    joined_at     timestamptz,                   -- verified at both ends
    left_at       timestamptz,                   -- verified gone from both ends
    PRIMARY KEY (partition_id, hca_port_id)
);
CREATE INDEX partition_member_port ON partition_member (hca_port_id) WHERE left_at IS NULL;
CREATE INDEX partition_member_allocation ON partition_member (allocation_id);

CREATE TABLE attestation (
    id           uuid PRIMARY KEY,
    org_id       uuid NOT NULL REFERENCES organization,
    lease_id     uuid NOT NULL REFERENCES lease,
    partition_id uuid REFERENCES partition, -- NULL: the lease ended before it had one
    occasion     text NOT NULL CHECK (occasion IN ('before_active', 'after_release', 'on_demand')),
    verdict      text NOT NULL CHECK (verdict IN ('isolated', 'not_isolated', 'unknown')),
    envelope     jsonb NOT NULL, -- in-toto statement in DSSE
    created_at   timestamptz NOT NULL
);
CREATE INDEX attestation_lease ON attestation (lease_id, created_at);

-- What a port holds against what it should: from onset until seen clean again.
CREATE TABLE drift (
    id          uuid PRIMARY KEY,
    fabric_id   uuid NOT NULL REFERENCES fabric,
    port_guid   text NOT NULL,
    what        text NOT NULL,
    onset       timestamptz NOT NULL,
    repair      text NOT NULL DEFAULT '',
    ended_at    timestamptz
);
CREATE UNIQUE INDEX drift_open ON drift (fabric_id, port_guid, what) WHERE ended_at IS NULL;

-- Public halves of the platform's signing keys; retired ones stay published for ever.
CREATE TABLE signing_key (
    kid        text PRIMARY KEY,
    purpose    text NOT NULL CHECK (purpose IN ('session', 'attestation')),
    public_key bytea NOT NULL CHECK (octet_length(public_key) = 32),
    created_at timestamptz NOT NULL,
    retired_at timestamptz
);

-- +goose Down
DROP TABLE signing_key, drift, attestation, partition_member, partition;
