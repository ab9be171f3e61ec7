package httpapi

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/tenant"
)

func TestEveryFaultHasAStatus(t *testing.T) {
	t.Parallel()
	seen := map[int]fault.Kind{}
	for _, kind := range fault.Kinds() {
		status := statusOf(kind)
		require.GreaterOrEqual(t, status, 400, kind)
		require.Empty(t, seen[status], "%s and %s share %d", kind, seen[status], status)
		seen[status] = kind
	}
	require.Zero(t, statusOf("something else"))
}

func TestOnlyFaultsHaveWordsForTheClient(t *testing.T) {
	t.Parallel()
	for _, err := range []error{errors.New("secret of the database"), fault.New(fault.Internal, "defect", "secret of the code")} {
		p := newProblem(err)
		require.Equal(t, http.StatusInternalServerError, p.Status)
		require.NotContains(t, *p.Detail, "secret")
	}
	p := newProblem(context.DeadlineExceeded)
	require.Equal(t, http.StatusServiceUnavailable, p.Status)
}

func loaded(t *testing.T) operations {
	t.Helper()
	document, err := loadContract(t.Context())
	require.NoError(t, err)
	all, err := newOperations(document, permissions())
	require.NoError(t, err)
	return all
}

func TestEveryRouteHasARowAndEveryRowARoute(t *testing.T) {
	t.Parallel()
	require.Len(t, loaded(t), len(permissions()))
	document, err := loadContract(t.Context())
	require.NoError(t, err)

	rows := permissions()
	delete(rows, "getLease")
	_, err = newOperations(document, rows)
	require.ErrorContains(t, err, "getLease")

	rows = permissions()
	rows["stealLease"] = permission{}
	_, err = newOperations(document, rows)
	require.ErrorContains(t, err, "stealLease")

	rows = permissions()
	rows["getLease"] = permission{public: true}
	_, err = newOperations(document, rows)
	require.ErrorContains(t, err, "disagree")
}

func TestEveryScopeInTheTableExists(t *testing.T) {
	t.Parallel()
	for id, row := range permissions() {
		require.Equal(t, row.scope != "", slices.Contains(tenant.AllScopes(), row.scope), id)
		if row.operator {
			require.Contains(t, []string{tenant.AdminRead, tenant.AdminWrite}, row.scope, id)
		}
	}
}

// exemptFromKeys are the writes that take no Idempotency-Key: log-ins, the webhook (idempotent by its event), and a search that only
// has its question in a body.
func exemptFromKeys() []string {
	return []string{"createSession", "refreshSession", "receiveStripeWebhook", "searchAvailability", "acceptInvitation", "startDeviceAuthorization", "claimDeviceAuthorization"}
}

func TestEveryWriteTakesAnIdempotencyKey(t *testing.T) {
	t.Parallel()
	for key, op := range loaded(t) {
		want := mutates(op.route.Method) && !slices.Contains(exemptFromKeys(), op.id)
		require.Equal(t, want, op.idempotent, key)
	}
}

func TestEveryChangeOfAMutableResourceTakesIfMatch(t *testing.T) {
	t.Parallel()
	for key, op := range loaded(t) {
		if op.route.Method == http.MethodPatch || op.route.Method == http.MethodPut {
			require.True(t, op.ifMatch, key)
		}
	}
}

func TestEveryRequestBodyRefusesUnknownMembers(t *testing.T) {
	t.Parallel()
	for key, op := range loaded(t) {
		if !op.hasBody || op.id == "receiveStripeWebhook" {
			continue
		}
		schema := op.route.Operation.RequestBody.Value.Content["application/json"].Schema.Value
		require.NotNil(t, schema.AdditionalProperties.Has, key)
		require.False(t, *schema.AdditionalProperties.Has, key)
		require.Empty(t, schema.AllOf, key)
	}
}

func TestSecretsInAnswersAreMarked(t *testing.T) {
	t.Parallel()
	marked := map[string][]string{}
	for _, op := range loaded(t) {
		if len(op.secrets) > 0 && op.idempotent {
			marked[op.id] = op.secrets
		}
	}
	require.Equal(t, map[string][]string{
		"createAPIKey": {"secret"}, "adminCreateEnrollmentToken": {"token"}, "createWebhookEndpoint": {"secret"}, "rotateWebhookSecret": {"secret"}, "rotateAPIKey": {"secret"}, "beginSecondFactor": {"otpauth_url", "secret"}, "confirmSecondFactor": {"recovery_codes"}, "createInvitation": {"token"},
		"updateWebhookEndpoint": {"secret"}, // never has one
	}, marked)
}

func TestIfMatchNamesExactlyOneVersion(t *testing.T) {
	t.Parallel()
	header := func(s string) *string { return &s }
	version, err := ifMatch(header(etag(7)))
	require.NoError(t, err)
	require.Equal(t, int64(7), version)
	for _, other := range []string{`W/"7"`, `"x"`, `"0"`, `"-1"`, `""`} {
		_, err := ifMatch(header(other))
		require.Equal(t, http.StatusPreconditionFailed, newProblem(err).Status, other)
	}
	for _, bad := range []string{"*", "7", `"7", "8"`, `"7",*`, "`7`", `"`, `w/"7"`} {
		_, err := ifMatch(header(bad))
		require.Equal(t, http.StatusBadRequest, newProblem(err).Status, bad)
		require.Contains(t, *newProblem(err).Detail, "send the ETag that you read", bad)
	}
	_, err = ifMatch(nil)
	require.Equal(t, http.StatusPreconditionRequired, newProblem(err).Status)
}
