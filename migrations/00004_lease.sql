-- +goose Up
-- What was sold, where it lives, and the work that it makes.

-- Epochs fence late commands. One sequence for all nodes: it only has to rise from one hand-over of a slot to the next.
CREATE SEQUENCE allocation_epoch;

CREATE TABLE lease (
    id               uuid PRIMARY KEY,
    org_id           uuid NOT NULL REFERENCES organization,
    project_id       uuid NOT NULL,
    name             text NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
    quote_id         uuid NOT NULL UNIQUE REFERENCES quote,
    instance_type_id uuid NOT NULL REFERENCES instance_type,
    site_id          uuid NOT NULL REFERENCES site,
    fabric_id        uuid REFERENCES fabric, -- NULL: no InfiniBand comes with it
    class            text NOT NULL CHECK (class IN ('reserved', 'on_demand', 'flexible', 'spot')),
    priority         integer NOT NULL DEFAULT 0,
    instances        integer NOT NULL CHECK (instances > 0),
    start_at         timestamptz NOT NULL,
    end_at           timestamptz NOT NULL CHECK (end_at > start_at),
    state            text NOT NULL CHECK (state IN ('reserved', 'provisioning', 'active', 'releasing', 'closed', 'cancelled')),
    outcome          text NOT NULL DEFAULT '' CHECK (outcome IN ('', 'completed', 'terminated', 'cancelled', 'failed')),
    reason           text NOT NULL DEFAULT '', -- why it waits or failed, in words for the customer
    failure_policy   text NOT NULL DEFAULT 'replace' CHECK (failure_policy IN ('replace', 'ask', 'keep')),
    currency         text NOT NULL,
    image            text NOT NULL DEFAULT '',
    user_data        text NOT NULL DEFAULT '' CHECK (length(user_data) <= 65536),
    tags             jsonb NOT NULL DEFAULT '{}',
    wanted_end_at    timestamptz, -- set by an early termination or a cancellation while provisioning: end as of then
    provisioning_at  timestamptz,
    active_at        timestamptz, -- access granted, clock starts
    released_at      timestamptz, -- access ended: what ends billing
    closed_at        timestamptz,
    -- The contract's version (what a client may change), which the ETag carries; not progress.
    version          bigint NOT NULL DEFAULT 1,
    event_seq        bigint NOT NULL DEFAULT 0,
    created_by       text NOT NULL,
    created_at       timestamptz NOT NULL,
    FOREIGN KEY (org_id, project_id) REFERENCES project (org_id, id)
);
CREATE INDEX lease_org ON lease (org_id, created_at DESC, id DESC);
CREATE INDEX lease_due ON lease (start_at) WHERE state = 'reserved';
CREATE INDEX lease_live ON lease (state) WHERE state IN ('provisioning', 'active', 'releasing');
ALTER TABLE quote ADD FOREIGN KEY (lease_id) REFERENCES lease DEFERRABLE INITIALLY DEFERRED;

-- A stretch of the contract with its own price lock: the booking is segment 1, each extension one more.
CREATE TABLE lease_segment (
    lease_id         uuid NOT NULL REFERENCES lease,
    seq              integer NOT NULL CHECK (seq >= 1),
    org_id           uuid NOT NULL REFERENCES organization,
    start_at         timestamptz NOT NULL,
    end_at           timestamptz NOT NULL CHECK (end_at > start_at),
    price_version_id uuid NOT NULL REFERENCES price_version,
    rate_micros      bigint NOT NULL,
    tax_rate_bps     integer NOT NULL,
    terms            jsonb NOT NULL,
    created_at       timestamptz NOT NULL,
    PRIMARY KEY (lease_id, seq)
);

-- The keys that were named at booking, frozen: deleting a key from the account does not change a running lease.
CREATE TABLE lease_ssh_key (
    lease_id   uuid NOT NULL REFERENCES lease,
    ssh_key_id uuid NOT NULL,
    org_id     uuid NOT NULL REFERENCES organization,
    name       text NOT NULL,
    public_key text NOT NULL,
    PRIMARY KEY (lease_id, ssh_key_id)
);

-- The lease's own log: what the bill is made from. Numbered under the lease row's lock, never changed.
CREATE TABLE lease_event (
    lease_id uuid NOT NULL REFERENCES lease,
    seq      bigint NOT NULL,
    org_id   uuid NOT NULL REFERENCES organization,
    type     text NOT NULL, -- e.g. lease.booked, lease.active, node.outage_began
    at       timestamptz NOT NULL,
    actor    text NOT NULL DEFAULT 'system',
    data     jsonb NOT NULL DEFAULT '{}',
    PRIMARY KEY (lease_id, seq)
);
CREATE INDEX lease_event_org ON lease_event (org_id, at DESC);

-- Node × slots × time that is held. The exclusion constraint is what makes a double sale impossible.
CREATE TABLE allocation (
    id          uuid PRIMARY KEY,
    node_id     uuid NOT NULL REFERENCES node,
    purpose     text NOT NULL CHECK (purpose IN ('lease', 'checkout', 'maintenance')),
    lease_id    uuid REFERENCES lease,
    ordinal     integer NOT NULL DEFAULT 0, -- which instance of the lease
    slots       int4range NOT NULL CHECK (NOT isempty(slots) AND lower_inc(slots) AND NOT upper_inc(slots) AND lower(slots) >= 0 AND upper(slots) IS NOT NULL),
    -- [start − lead, end + turnaround)
    occupied    tstzrange NOT NULL CHECK (NOT isempty(occupied) AND lower_inc(occupied) AND NOT upper_inc(occupied)
                                          AND lower(occupied) IS NOT NULL AND upper(occupied) IS NOT NULL
                                          AND isfinite(lower(occupied)) AND isfinite(upper(occupied))),
    state       text NOT NULL CHECK (state IN ('held', 'preparing', 'in_use', 'cleaning', 'released', 'quarantined')),
    reason      text NOT NULL DEFAULT '',
    epoch       bigint NOT NULL DEFAULT 0, -- drawn at hand-over (prepare), not at booking: a later booking may run earlier
    access      jsonb,                     -- {host, port, user, host_keys} once granted
    replaced_by uuid REFERENCES allocation,
    created_at  timestamptz NOT NULL,
    released_at timestamptz,
    CHECK ((state = 'released') = (released_at IS NOT NULL)),
    CHECK ((purpose = 'lease') = (lease_id IS NOT NULL)),
    CONSTRAINT allocation_no_overlap EXCLUDE USING gist (node_id WITH =, slots WITH &&, occupied WITH &&) WHERE (released_at IS NULL)
);
CREATE INDEX allocation_lease ON allocation (lease_id);
-- What a search reads: everything that holds a slot in its window, without visiting the table.
CREATE INDEX allocation_live_window ON allocation USING gist (occupied) INCLUDE (node_id, slots, state) WHERE released_at IS NULL;
CREATE INDEX allocation_live_end ON allocation (upper(occupied)) WHERE released_at IS NULL;
CREATE INDEX allocation_quarantined ON allocation (node_id) WHERE state = 'quarantined' AND released_at IS NULL;

-- A step is a set: the operations that must end before the lease goes on. Only the last completion or a failure nudges.
CREATE TABLE step (
    id          uuid PRIMARY KEY,
    lease_id    uuid REFERENCES lease,
    fabric_id   uuid REFERENCES fabric,
    kind        text NOT NULL,
    attempt     integer NOT NULL DEFAULT 1,
    remaining   integer NOT NULL CHECK (remaining >= 0),
    failed      integer NOT NULL DEFAULT 0,
    created_at  timestamptz NOT NULL,
    finished_at timestamptz,
    UNIQUE NULLS NOT DISTINCT (lease_id, fabric_id, kind, attempt)
);

CREATE TABLE operation (
    id            uuid PRIMARY KEY,
    agent_id      uuid REFERENCES agent, -- NULL: there was no agent to ask; the operation has expired at once
    step_id       uuid REFERENCES step,
    lease_id      uuid REFERENCES lease,
    allocation_id uuid REFERENCES allocation,
    node_id       uuid REFERENCES node,
    fabric_id     uuid REFERENCES fabric,
    kind          text NOT NULL,
    -- lease, node, step, epoch: writing the same operation again finds this row.
    dedup_key     text NOT NULL UNIQUE,
    epoch         bigint NOT NULL,
    slots         int4range,
    spec          jsonb NOT NULL,
    state         text NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'running', 'succeeded', 'failed', 'fenced', 'expired')),
    percent       integer NOT NULL DEFAULT 0 CHECK (percent BETWEEN 0 AND 100),
    phase         text NOT NULL DEFAULT '',
    fault         jsonb,
    evidence      jsonb,
    signed        jsonb,
    pick_up_by    timestamptz NOT NULL, -- later: the agent is offline
    done_by       timestamptz NOT NULL, -- later: it is slow
    created_at    timestamptz NOT NULL,
    started_at    timestamptz,
    finished_at   timestamptz,
    absorbed_at   timestamptz -- fabric agents: when what it observed was taken into the partitions
);
CREATE INDEX operation_agent_queue ON operation (agent_id, created_at) WHERE state IN ('queued', 'running');
CREATE INDEX operation_step ON operation (step_id);
CREATE INDEX operation_fabric ON operation (fabric_id, created_at) WHERE fabric_id IS NOT NULL;
CREATE INDEX operation_pick_up ON operation (pick_up_by) WHERE state = 'queued';
CREATE INDEX operation_done ON operation (done_by) WHERE state = 'running';
CREATE INDEX operation_lease ON operation (lease_id, created_at);

CREATE TABLE wipe_certificate (
    id            uuid PRIMARY KEY,
    org_id        uuid NOT NULL REFERENCES organization,
    lease_id      uuid NOT NULL REFERENCES lease,
    allocation_id uuid NOT NULL REFERENCES allocation,
    node_id       uuid NOT NULL REFERENCES node,
    result        text NOT NULL CHECK (result IN ('wiped', 'unsupported', 'failed')),
    envelope      jsonb NOT NULL, -- DSSE, signed by the platform, embeds the agent's signed evidence
    created_at    timestamptz NOT NULL
);
CREATE INDEX wipe_certificate_lease ON wipe_certificate (lease_id);

-- +goose Down
DROP TABLE wipe_certificate, operation, step, allocation, lease_event, lease_ssh_key, lease_segment;
ALTER TABLE quote DROP CONSTRAINT quote_lease_id_fkey;
DROP TABLE lease;
DROP SEQUENCE allocation_epoch;
