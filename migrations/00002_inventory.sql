-- +goose Up
-- What there is: sites, fabrics, switches, nodes and their parts. Market tables: no org_id, invisible to the tenant role.

CREATE TABLE site (
    id                 uuid PRIMARY KEY,
    provider_org_id    uuid NOT NULL REFERENCES organization,
    name               text NOT NULL UNIQUE CHECK (name ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
    region             text NOT NULL,
    country            text NOT NULL CHECK (country ~ '^[A-Z]{2}$'),
    time_zone          text NOT NULL DEFAULT 'UTC',
    ethernet_isolation text NOT NULL DEFAULT 'none' CHECK (ethernet_isolation IN ('none', 'vlan', 'evpn')),
    -- A lab's wish: nodes whose inventory fits an instance type go on sale without an admin's click.
    auto_accept        boolean NOT NULL DEFAULT false,
    version            bigint NOT NULL DEFAULT 1,
    created_at         timestamptz NOT NULL
);

CREATE TABLE fabric (
    id                 uuid PRIMARY KEY,
    site_id            uuid NOT NULL REFERENCES site,
    name               text NOT NULL CHECK (name ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
    kind               text NOT NULL DEFAULT 'infiniband' CHECK (kind IN ('infiniband', 'evpn')),
    driver             text NOT NULL DEFAULT '', -- as the fabric agent reports it: sim, opensm, ufm
    controller_version text NOT NULL DEFAULT '',
    -- Counts changes of the desired set; the fence of operations on the fabric.
    epoch              bigint NOT NULL DEFAULT 0,
    managed_low        integer NOT NULL DEFAULT 1 CHECK (managed_low BETWEEN 1 AND 32766),
    managed_high       integer NOT NULL DEFAULT 32766 CHECK (managed_high BETWEEN managed_low AND 32766),
    max_pkeys_per_port integer NOT NULL DEFAULT 31,
    posture            jsonb NOT NULL DEFAULT '[]',
    posture_override   text, -- the reason of an audited lab override; NULL: none
    spares             integer NOT NULL DEFAULT 0 CHECK (spares >= 0), -- healthy nodes kept back for replacement
    observed_at        timestamptz,
    version            bigint NOT NULL DEFAULT 1,
    created_at         timestamptz NOT NULL,
    UNIQUE (site_id, name)
);

CREATE TABLE switch (
    id        uuid PRIMARY KEY,
    fabric_id uuid NOT NULL REFERENCES fabric,
    guid      text NOT NULL CHECK (guid ~ '^0x[0-9a-f]{16}$'),
    name      text NOT NULL,
    level     integer NOT NULL DEFAULT 0, -- 1 leaf, 2 spine, 3 core, 0 unknown
    ports     integer NOT NULL,
    pod       text NOT NULL DEFAULT '',
    UNIQUE (fabric_id, guid)
);

CREATE TABLE link (
    id             uuid PRIMARY KEY,
    fabric_id      uuid NOT NULL REFERENCES fabric,
    from_switch_id uuid NOT NULL REFERENCES switch ON DELETE CASCADE,
    from_port      integer NOT NULL,
    to_switch_id   uuid NOT NULL REFERENCES switch ON DELETE CASCADE,
    to_port        integer NOT NULL,
    rate_gbps      integer NOT NULL DEFAULT 0,
    UNIQUE (from_switch_id, from_port)
);

CREATE TABLE node (
    id            uuid PRIMARY KEY,
    site_id       uuid NOT NULL REFERENCES site,
    fabric_id     uuid REFERENCES fabric, -- NULL: no InfiniBand
    name          text NOT NULL CHECK (name ~ '^[a-z0-9][a-z0-9.-]{0,252}$'),
    serial        text NOT NULL DEFAULT '', -- not a key: vendors repeat serials
    manufacturer  text NOT NULL DEFAULT '',
    product       text NOT NULL DEFAULT '',
    -- What is sold as: the hardware key that instance types name, e.g. h100-sxm-80gb.8; '' until recognised.
    hardware      text NOT NULL DEFAULT '',
    mode          text NOT NULL DEFAULT 'bare_metal' CHECK (mode IN ('bare_metal', 'shared')),
    state         text NOT NULL CHECK (state IN ('discovered', 'verifying', 'available', 'maintenance', 'quarantined', 'retired')),
    state_reason  text NOT NULL DEFAULT '',
    state_exit    text NOT NULL DEFAULT '' CHECK (state_exit IN ('', 'retest', 'repair', 'retire')),
    slots         integer NOT NULL DEFAULT 0 CHECK (slots >= 0 AND slots % 8 = 0), -- 8 a bay
    pod           text NOT NULL DEFAULT '',
    -- The leaf switch of its first rail: nodes with the same one are one hop apart on every rail.
    leaf_id       uuid REFERENCES switch ON DELETE SET NULL,
    hca_per_gpu   boolean NOT NULL DEFAULT false, -- each GPU bay has an HCA port of its own
    rack          text NOT NULL DEFAULT '',
    nvlink_domain text NOT NULL DEFAULT '',
    bmc_address   text NOT NULL DEFAULT '',
    cpu_cores     integer NOT NULL DEFAULT 0,
    memory_bytes  bigint NOT NULL DEFAULT 0,
    inventory     jsonb,                    -- the accepted report
    reported      jsonb,                    -- the latest report, when it differs from the accepted one
    version       bigint NOT NULL DEFAULT 1,
    created_at    timestamptz NOT NULL,
    CHECK (state <> 'quarantined' OR (state_reason <> '' AND state_exit <> '')),
    UNIQUE (site_id, name)
);
CREATE INDEX node_placement ON node (hardware, mode, site_id) WHERE state = 'available';
CREATE INDEX node_fabric ON node (fabric_id);

-- Written every few seconds for every node: apart from node, narrow, with room for heap-only updates.
CREATE TABLE node_liveness (
    node_id  uuid PRIMARY KEY REFERENCES node,
    boot_id  text NOT NULL,
    sequence bigint NOT NULL,
    seen_at  timestamptz NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE gpu (
    id           uuid PRIMARY KEY,
    node_id      uuid NOT NULL REFERENCES node,
    bay          integer NOT NULL CHECK (bay >= 0), -- fixed at acceptance by PCI address
    uuid         text NOT NULL,
    vendor       text NOT NULL,
    model        text NOT NULL,
    serial       text NOT NULL DEFAULT '',
    memory_bytes bigint NOT NULL,
    pci_address  text NOT NULL,
    numa_node    integer NOT NULL DEFAULT -1,
    mig_capable  boolean NOT NULL DEFAULT false,
    UNIQUE (node_id, bay)
);

CREATE TABLE hca_port (
    id          uuid PRIMARY KEY,
    node_id     uuid NOT NULL REFERENCES node,
    fabric_id   uuid REFERENCES fabric,
    bay         integer, -- the GPU bay that it belongs to 1:1; NULL: it belongs to the whole node
    rail        integer NOT NULL DEFAULT 0,
    device      text NOT NULL,
    port        integer NOT NULL,
    node_guid   text NOT NULL CHECK (node_guid ~ '^0x[0-9a-f]{16}$'),
    guid        text NOT NULL CHECK (guid ~ '^0x[0-9a-f]{16}$'),
    rate_gbps   integer NOT NULL DEFAULT 0,
    switch_id   uuid REFERENCES switch ON DELETE SET NULL,
    switch_port integer,
    UNIQUE (node_id, guid),
    UNIQUE (fabric_id, guid)
);
CREATE INDEX hca_port_switch ON hca_port (switch_id);

-- Every HCA port that the fabric's manager sees, whether or not we know the machine behind it.
CREATE TABLE fabric_port (
    fabric_id   uuid NOT NULL REFERENCES fabric,
    guid        text NOT NULL CHECK (guid ~ '^0x[0-9a-f]{16}$'),
    node_guid   text NOT NULL,
    description text NOT NULL DEFAULT '',
    lid         integer NOT NULL DEFAULT 0,
    switch_id   uuid REFERENCES switch ON DELETE CASCADE,
    switch_port integer NOT NULL DEFAULT 0,
    rate_gbps   integer NOT NULL DEFAULT 0,
    PRIMARY KEY (fabric_id, guid)
);
CREATE INDEX fabric_port_guid ON fabric_port (guid);

CREATE TABLE node_condition (
    node_id     uuid NOT NULL REFERENCES node,
    name        text NOT NULL,
    device      text NOT NULL DEFAULT '',
    class       text NOT NULL CHECK (class IN ('prevents_allocation', 'degrades', 'informs')),
    onset       timestamptz NOT NULL,
    evidence    text NOT NULL DEFAULT '',
    exit        text NOT NULL DEFAULT '',
    reported_at timestamptz NOT NULL,
    cleared_at  timestamptz,
    PRIMARY KEY (node_id, name, device, onset)
);
CREATE INDEX node_condition_live ON node_condition (node_id) WHERE cleared_at IS NULL;

-- A difference between a report and what was accepted: an event for an admin.
CREATE TABLE inventory_change (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    node_id     uuid NOT NULL REFERENCES node,
    what        text NOT NULL,
    before      text NOT NULL,
    after       text NOT NULL,
    state       text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'accepted', 'rejected')),
    observed_at timestamptz NOT NULL,
    UNIQUE (node_id, what, after, state)
);
CREATE INDEX inventory_change_pending ON inventory_change (node_id) WHERE state = 'pending';

-- One compressed chunk a node and minute: gzip members one after the other, each a JSON array of protocol samples, so that a
-- heartbeat appends without reading. Only written while the node is leased.
CREATE TABLE metric_chunk (
    node_id uuid NOT NULL REFERENCES node,
    minute  timestamptz NOT NULL,
    samples bytea NOT NULL,
    PRIMARY KEY (node_id, minute)
);

CREATE TABLE agent (
    id            uuid PRIMARY KEY,
    kind          text NOT NULL CHECK (kind IN ('node', 'fabric')),
    site_id       uuid NOT NULL REFERENCES site,
    node_id       uuid REFERENCES node,
    fabric_id     uuid REFERENCES fabric,
    public_key    bytea NOT NULL CHECK (octet_length(public_key) = 32),
    agent_version text NOT NULL DEFAULT '',
    created_at    timestamptz NOT NULL,
    revoked_at    timestamptz,
    last_seen_at  timestamptz,
    CHECK ((kind = 'node') = (node_id IS NOT NULL) AND (kind = 'fabric') = (fabric_id IS NOT NULL))
);
-- One living identity a node and a fabric: a second agent with the same identity is refused.
CREATE UNIQUE INDEX agent_node ON agent (node_id) WHERE revoked_at IS NULL;
CREATE UNIQUE INDEX agent_fabric ON agent (fabric_id) WHERE revoked_at IS NULL;

CREATE TABLE enrollment_token (
    id         uuid PRIMARY KEY,
    site_id    uuid NOT NULL REFERENCES site,
    token_hash bytea NOT NULL UNIQUE,
    max_uses   integer NOT NULL DEFAULT 1 CHECK (max_uses >= 1),
    uses       integer NOT NULL DEFAULT 0 CHECK (uses <= max_uses),
    expires_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL
);

-- Tokens of result calls that were used; a replay finds its row.
CREATE TABLE agent_jti (
    agent_id   uuid NOT NULL,
    jti        text NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (agent_id, jti)
);
CREATE INDEX agent_jti_age ON agent_jti (expires_at);

-- +goose Down
DROP TABLE agent_jti, enrollment_token, agent, metric_chunk, inventory_change, node_condition, fabric_port, hca_port, gpu, node_liveness, node, link, switch, fabric, site;
