-- +goose Up
-- Money: usage, charges, the ledger, invoices, payments. Amounts are minor units (bigint), rates micro-units (bigint).

-- Facts from outside, kept once for ever: the same id again is ignored, with another payload it is a conflict.
CREATE TABLE usage_event (
    source       text NOT NULL,  -- agent id, or "control-plane"
    event_id     text NOT NULL,
    org_id       uuid NOT NULL REFERENCES organization,
    lease_id     uuid NOT NULL REFERENCES lease,
    kind         text NOT NULL,
    boot_id      text NOT NULL DEFAULT '',
    sequence     bigint NOT NULL DEFAULT 0,
    observed_at  timestamptz NOT NULL,
    received_at  timestamptz NOT NULL,
    payload_hash bytea NOT NULL,
    payload      jsonb NOT NULL,
    conflict     jsonb, -- the first differing payload that came later
    PRIMARY KEY (source, event_id)
);

CREATE TABLE usage_interval (
    id            uuid PRIMARY KEY,
    org_id        uuid NOT NULL REFERENCES organization,
    lease_id      uuid NOT NULL REFERENCES lease,
    allocation_id uuid NOT NULL REFERENCES allocation,
    class         text NOT NULL CHECK (class IN ('billable', 'provisioning', 'outage', 'degraded', 'maintenance', 'grace')),
    start_at      timestamptz NOT NULL,
    end_at        timestamptz NOT NULL CHECK (end_at > start_at),
    evidence      text[] NOT NULL DEFAULT '{}',
    CONSTRAINT usage_interval_no_overlap EXCLUDE USING gist (allocation_id WITH =, tstzrange(start_at, end_at) WITH &&)
);
CREATE INDEX usage_interval_lease ON usage_interval (lease_id, start_at);

CREATE TABLE rating_run (
    id            uuid PRIMARY KEY,
    org_id        uuid NOT NULL REFERENCES organization,
    lease_id      uuid NOT NULL REFERENCES lease,
    inputs_digest text NOT NULL,
    lines_digest  text NOT NULL,
    code_version  text NOT NULL,
    until_at      timestamptz NOT NULL, -- rated up to here,
    event_seq     bigint NOT NULL,      -- knowing the lease's log up to here
    created_at    timestamptz NOT NULL,
    UNIQUE (lease_id, inputs_digest, code_version)
);

CREATE TABLE invoice (
    id             uuid PRIMARY KEY,
    org_id         uuid NOT NULL REFERENCES organization,
    number         text UNIQUE, -- gapless, drawn when it is finalized
    state          text NOT NULL CHECK (state IN ('draft', 'final', 'void')),
    lease_id       uuid REFERENCES lease, -- set: an invoice of one closed lease; NULL: a month's
    period_start   timestamptz NOT NULL,
    period_end     timestamptz NOT NULL,
    currency       text NOT NULL,
    subtotal_minor bigint NOT NULL DEFAULT 0,
    tax_minor      bigint NOT NULL DEFAULT 0,
    total_minor    bigint NOT NULL DEFAULT 0,
    prepaid_minor  bigint NOT NULL DEFAULT 0, -- burnt from holds
    payable_minor  bigint NOT NULL DEFAULT 0,
    snapshot       jsonb, -- frozen when final
    digest         text NOT NULL DEFAULT '',
    created_at     timestamptz NOT NULL,
    finalized_at   timestamptz,
    CHECK (total_minor = subtotal_minor + tax_minor),
    CHECK (payable_minor = total_minor - prepaid_minor)
);
CREATE INDEX invoice_org ON invoice (org_id, created_at DESC);
CREATE UNIQUE INDEX invoice_open_lease ON invoice (lease_id) WHERE lease_id IS NOT NULL AND state <> 'void';

CREATE TABLE charge_line (
    id                   uuid PRIMARY KEY,
    org_id               uuid NOT NULL REFERENCES organization,
    project_id           uuid NOT NULL,
    lease_id             uuid NOT NULL REFERENCES lease,
    segment_seq          integer NOT NULL,
    seq                  integer NOT NULL, -- k-th line of the segment
    kind                 text NOT NULL CHECK (kind IN ('usage', 'credit', 'fee', 'correction')),
    description          text NOT NULL,
    start_at             timestamptz NOT NULL,
    end_at               timestamptz NOT NULL,
    unit                 text NOT NULL, -- gpu_milliseconds, instance_milliseconds
    quantity_unit_millis numeric(30, 0) NOT NULL,
    rate_micros          bigint NOT NULL,
    amount_minor         bigint NOT NULL, -- round(cumulative) − already charged
    tax_rate_bps         integer NOT NULL,
    tax_minor            bigint NOT NULL,
    currency             text NOT NULL,
    rating_run_id        uuid NOT NULL REFERENCES rating_run,
    corrects_id          uuid REFERENCES charge_line,
    invoice_id           uuid REFERENCES invoice,
    created_at           timestamptz NOT NULL,
    UNIQUE (lease_id, segment_seq, kind, seq)
);
CREATE INDEX charge_line_org ON charge_line (org_id, start_at);

-- Double entry. Debits are positive, credits negative; every transaction sums to zero per currency.
CREATE TABLE ledger_account (
    id       uuid PRIMARY KEY,
    org_id   uuid REFERENCES organization, -- NULL: the platform's own
    kind     text NOT NULL CHECK (kind IN ('cash', 'held', 'receivable', 'promo', 'payable',
                                           'earned', 'fees', 'tax', 'sla_expense', 'breakage', 'payment_clearing')),
    currency text NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
    UNIQUE NULLS NOT DISTINCT (org_id, kind, currency)
);

CREATE TABLE ledger_tx (
    id         uuid PRIMARY KEY,
    org_id     uuid REFERENCES organization, -- whose affair it is
    kind       text NOT NULL CHECK (kind IN ('top_up', 'hold', 'capture', 'release', 'share', 'refund', 'credit', 'payout', 'adjustment')),
    reference  text NOT NULL UNIQUE, -- the effect's own name, e.g. capture:<lease>:<segment>:<seq>; posting it twice is one posting
    lease_id   uuid REFERENCES lease,
    memo       text NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL
);
CREATE INDEX ledger_tx_org ON ledger_tx (org_id, created_at DESC, id DESC);

CREATE TABLE ledger_entry (
    id           uuid PRIMARY KEY,
    tx_id        uuid NOT NULL REFERENCES ledger_tx,
    account_id   uuid NOT NULL REFERENCES ledger_account,
    org_id       uuid REFERENCES organization,
    currency     text NOT NULL,
    amount_minor bigint NOT NULL CHECK (amount_minor <> 0)
);
CREATE INDEX ledger_entry_tx ON ledger_entry (tx_id);
CREATE INDEX ledger_entry_account ON ledger_entry (account_id);

-- +goose StatementBegin
CREATE FUNCTION ledger_tx_is_balanced() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM ledger_entry WHERE tx_id = NEW.tx_id GROUP BY currency HAVING sum(amount_minor) <> 0) THEN
        RAISE EXCEPTION 'ledger transaction % does not sum to zero', NEW.tx_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'ledger_tx_balanced';
    END IF;
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE CONSTRAINT TRIGGER ledger_tx_balanced AFTER INSERT ON ledger_entry
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION ledger_tx_is_balanced();

-- Guarded balances of customers' accounts, kept in the posting's own transaction. A customer's accounts are liabilities of
-- the platform: balance_minor is what the customer has (credits minus debits), so more is better for them.
CREATE TABLE ledger_balance (
    account_id    uuid PRIMARY KEY REFERENCES ledger_account,
    org_id        uuid NOT NULL REFERENCES organization,
    kind          text NOT NULL,
    currency      text NOT NULL,
    balance_minor bigint NOT NULL DEFAULT 0,
    floor_minor   bigint NOT NULL DEFAULT 0 CHECK (floor_minor <= 0), -- −credit limit for cash, else 0
    CONSTRAINT ledger_balance_floor CHECK (balance_minor >= floor_minor)
);
CREATE UNIQUE INDEX ledger_balance_org ON ledger_balance (org_id, kind, currency);

CREATE TABLE hold (
    id             uuid PRIMARY KEY,
    org_id         uuid NOT NULL REFERENCES organization,
    lease_id       uuid NOT NULL UNIQUE REFERENCES lease DEFERRABLE INITIALLY DEFERRED,
    currency       text NOT NULL,
    amount_minor   bigint NOT NULL CHECK (amount_minor >= 0),   -- grows with an extension
    captured_minor bigint NOT NULL DEFAULT 0 CHECK (captured_minor BETWEEN 0 AND amount_minor),
    released_minor bigint NOT NULL DEFAULT 0 CHECK (released_minor >= 0 AND captured_minor + released_minor <= amount_minor),
    closed_at      timestamptz,
    created_at     timestamptz NOT NULL,
    CHECK (closed_at IS NULL OR captured_minor + released_minor = amount_minor)
);

CREATE TABLE payment (
    id           uuid PRIMARY KEY,
    org_id       uuid NOT NULL REFERENCES organization,
    kind         text NOT NULL CHECK (kind IN ('top_up', 'invoice')),
    invoice_id   uuid REFERENCES invoice,
    currency     text NOT NULL,
    amount_minor bigint NOT NULL CHECK (amount_minor > 0),
    state        text NOT NULL CHECK (state IN ('pending', 'requires_action', 'succeeded', 'failed')),
    gateway      text NOT NULL, -- stripe, test
    gateway_ref  text,          -- the PaymentIntent's id
    action_url   text NOT NULL DEFAULT '',
    failure      text NOT NULL DEFAULT '',
    method       text NOT NULL DEFAULT '', -- the gateway's payment method, e.g. pm_card_visa
    effect_key   text NOT NULL UNIQUE, -- our durable idempotency key with the gateway
    attempt      integer NOT NULL DEFAULT 1, -- counts keys: a new one only after the gateway proved that the last one had no effect
    unsure       boolean NOT NULL DEFAULT false, -- the last attempt may have had an effect: look before trying again
    created_by   text NOT NULL,
    created_at   timestamptz NOT NULL,
    updated_at   timestamptz NOT NULL
);
CREATE INDEX payment_org ON payment (org_id, created_at DESC);
CREATE UNIQUE INDEX payment_gateway_ref ON payment (gateway, gateway_ref) WHERE gateway_ref IS NOT NULL;

-- Webhooks as they came; hints only. Parked ones stay visible.
CREATE TABLE gateway_event (
    id            text PRIMARY KEY,
    gateway       text NOT NULL,
    type          text NOT NULL,
    payload       jsonb NOT NULL,
    received_at   timestamptz NOT NULL,
    object_ref    text NOT NULL DEFAULT '', -- what to fetch again
    processed_at  timestamptz,
    parked_reason text NOT NULL DEFAULT ''
);

-- What the built-in test gateway remembers; empty where Stripe is configured.
CREATE TABLE test_gateway_intent (
    ref  text PRIMARY KEY,
    body jsonb NOT NULL
);

-- Gapless numbers, one row an issuer; locked by whoever finalizes.
CREATE TABLE invoice_counter (
    issuer text PRIMARY KEY,
    last   bigint NOT NULL DEFAULT 0
);

-- +goose Down
DROP TABLE invoice_counter, test_gateway_intent, gateway_event, payment, hold, ledger_balance, ledger_entry, ledger_tx, ledger_account, charge_line, invoice, rating_run, usage_interval, usage_event;
DROP FUNCTION ledger_tx_is_balanced();
