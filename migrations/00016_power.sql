-- +goose Up
-- Machines that are leased whole, with their management controllers (BMCs), and the rights that exist while one of them boots.

CREATE TABLE machine (
    node_id            uuid PRIMARY KEY REFERENCES node,
    bmc_url            text NOT NULL CHECK (bmc_url LIKE 'https://%'),
    bmc_user           text NOT NULL,
    bmc_secret         bytea NOT NULL, -- the password, sealed by the platform's vault
    bmc_pin            bytea NOT NULL DEFAULT '' CHECK (length(bmc_pin) IN (0, 32)), -- SHA-256 of its certificate; empty: the system's authorities decide
    bmc_system         text NOT NULL DEFAULT '',
    macs               text[] NOT NULL,
    access_host        text NOT NULL DEFAULT '',
    access_port        integer NOT NULL DEFAULT 0 CHECK (access_port BETWEEN 0 AND 65535),
    -- Whose system runs, as far as we have seen to it. While it is not ours, no agent is expected.
    stage              text NOT NULL DEFAULT 'unknown' CHECK (stage IN ('unknown', 'off', 'service', 'tenant')),
    stage_since        timestamptz NOT NULL,
    -- Which worker speaks to the BMC now, and until when it may without saying so again.
    worker             text NOT NULL DEFAULT '',
    worker_until       timestamptz,
    created_at         timestamptz NOT NULL
);
CREATE INDEX machine_mac ON machine USING gin (macs);

CREATE TABLE boot_ticket (
    id            uuid PRIMARY KEY, -- the power operation's, or its own
    node_id       uuid NOT NULL REFERENCES machine,
    purpose       text NOT NULL CHECK (purpose IN ('service', 'tenant')),
    allocation_id uuid REFERENCES allocation,
    epoch         bigint NOT NULL DEFAULT 0,
    token_hash    bytea UNIQUE, -- NULL: no token was made yet
    expires_at    timestamptz NOT NULL,
    created_at    timestamptz NOT NULL,
    used_at       timestamptz,
    used_by       bytea, -- the agent's key
    call          jsonb  -- what a tenant's system said when it phoned home
);
CREATE INDEX boot_ticket_node ON boot_ticket (node_id, purpose, created_at);
CREATE INDEX boot_ticket_allocation ON boot_ticket (allocation_id) WHERE allocation_id IS NOT NULL;

-- Work of our own: no agent does it.
CREATE INDEX operation_ours ON operation (node_id, created_at) WHERE agent_id IS NULL AND state IN ('queued', 'running');

-- Disk images for machines that are leased whole.
CREATE TABLE disk_image (
    name       text PRIMARY KEY,
    url        text NOT NULL,
    format     text NOT NULL CHECK (format IN ('raw', 'qcow2')),
    sha256     text NOT NULL CHECK (sha256 ~ '^[0-9a-f]{64}$'),
    size_bytes bigint NOT NULL CHECK (size_bytes > 0),
    created_at timestamptz NOT NULL
);

GRANT SELECT, INSERT, UPDATE, DELETE ON machine, boot_ticket, disk_image TO leasehold_platform;

-- +goose Down
DROP TABLE disk_image;
DROP INDEX operation_ours;
DROP TABLE boot_ticket;
DROP TABLE machine;
