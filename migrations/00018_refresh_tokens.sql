-- +goose Up
-- A session's refresh tokens. One that was traded is good for some seconds more: two tabs of a browser trade it at once, and an answer gets
-- lost. After that, seeing it again means that somebody has a copy. The columns of session stay for the release before this one.
CREATE TABLE session_token (
    hash       bytea PRIMARY KEY, -- SHA-256
    session_id uuid NOT NULL REFERENCES session ON DELETE CASCADE,
    org_id     uuid NOT NULL,
    created_at timestamptz NOT NULL,
    retired_at timestamptz -- when it was traded, or another one in its place
);
CREATE INDEX session_token_session ON session_token (session_id);
CREATE INDEX session_token_retired ON session_token (retired_at) WHERE retired_at IS NOT NULL;
ALTER TABLE session_token ENABLE ROW LEVEL SECURITY;
CREATE POLICY tenant ON session_token TO leasehold_tenant USING (org_id = current_org()) WITH CHECK (org_id = current_org());
CREATE POLICY platform ON session_token TO leasehold_platform USING (true) WITH CHECK (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON session_token TO leasehold_platform;
INSERT INTO session_token (hash, session_id, org_id, created_at)
SELECT refresh_hash, id, org_id, refreshed_at FROM session;
INSERT INTO session_token (hash, session_id, org_id, created_at, retired_at)
SELECT previous_hash, id, org_id, created_at, refreshed_at FROM session WHERE previous_hash IS NOT NULL ON CONFLICT DO NOTHING;

-- +goose Down
DROP TABLE session_token;
