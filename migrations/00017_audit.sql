-- +goose Up
-- The audit log is a chain for each organization, and one for the platform's own affairs: a number without gaps, and the hash of the event before.
ALTER TABLE audit_event ADD COLUMN source text NOT NULL DEFAULT ''; -- the address that the request came from
CREATE INDEX audit_event_newest ON audit_event (org_id, id DESC);
CREATE INDEX audit_event_target ON audit_event (org_id, target, id DESC);
CREATE INDEX audit_event_request ON audit_event (request_id) WHERE request_id <> '';
CREATE INDEX audit_event_at ON audit_event (at);

CREATE TABLE audit_link (
    org_id    uuid REFERENCES organization, -- NULL: the platform's own chain
    chain     uuid GENERATED ALWAYS AS (coalesce(org_id, '00000000-0000-0000-0000-000000000000'::uuid)) STORED,
    seq       bigint NOT NULL CHECK (seq > 0),
    event_id  uuid NOT NULL UNIQUE REFERENCES audit_event,
    previous  text NOT NULL,
    hash      text NOT NULL,
    PRIMARY KEY (chain, seq)
);
ALTER TABLE audit_link ENABLE ROW LEVEL SECURITY;
CREATE POLICY tenant ON audit_link TO leasehold_tenant USING (org_id = current_org()) WITH CHECK (org_id = current_org());
CREATE POLICY platform ON audit_link TO leasehold_platform USING (true) WITH CHECK (true);
GRANT SELECT ON audit_link TO leasehold_tenant;
GRANT SELECT, INSERT ON audit_link TO leasehold_platform; -- append-only by privilege

-- What is in no chain yet, in the order of writing. The trigger puts it here, whoever writes: a release that knows no chains as well.
CREATE TABLE audit_unchained (
    position bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    event_id uuid NOT NULL
);
GRANT SELECT, DELETE ON audit_unchained TO leasehold_platform;
INSERT INTO audit_unchained (event_id) SELECT id FROM audit_event ORDER BY at, id;

-- +goose StatementBegin
CREATE FUNCTION audit_event_unchained() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
    INSERT INTO audit_unchained (event_id) VALUES (NEW.id);
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER audit_event_unchained AFTER INSERT ON audit_event FOR EACH ROW EXECUTE FUNCTION audit_event_unchained();

-- +goose Down
DROP TRIGGER audit_event_unchained ON audit_event;
DROP FUNCTION audit_event_unchained();
DROP TABLE audit_unchained, audit_link;
DROP INDEX audit_event_newest, audit_event_target, audit_event_request, audit_event_at;
ALTER TABLE audit_event DROP COLUMN source;
