package ids_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/leasehold/leasehold/backend/ids"
)

func TestIDsRoundTripThroughEveryForm(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var uuid [16]byte
		copy(uuid[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "uuid"))
		id := ids.FromUUID[ids.LeaseKind](uuid)
		if id.IsZero() {
			return
		}
		back, err := ids.Read[ids.Lease](id.String())
		require.NoError(t, err)
		require.Equal(t, id, back)

		text, err := id.Value()
		require.NoError(t, err)
		var scanned ids.Lease
		require.NoError(t, scanned.Scan(text))
		require.Equal(t, id, scanned)

		raw, err := json.Marshal(map[string]ids.Lease{"id": id})
		require.NoError(t, err)
		var decoded map[string]ids.Lease
		require.NoError(t, json.Unmarshal(raw, &decoded))
		require.Equal(t, id, decoded["id"])
	})
}

func TestKnownTypeIDVector(t *testing.T) {
	t.Parallel()
	// From the typeid specification's valid vectors: 01890a5d-ac96-774b-bcce-b302099a8057 is 01h455vb4pex5vsknk084sn02q.
	var id ids.Lease
	require.NoError(t, id.Scan("01890a5d-ac96-774b-bcce-b302099a8057"))
	require.Equal(t, "lease_01h455vb4pex5vsknk084sn02q", id.String())
}

func TestFreshIDsAscend(t *testing.T) {
	t.Parallel()
	last := ids.Make[ids.Lease]()
	for range 10_000 {
		next := ids.Make[ids.Lease]()
		require.Greater(t, next.String(), last.String())
		u := next.UUID()
		require.Equal(t, byte(7), u[6]>>4, "version")
		require.Equal(t, byte(2), u[8]>>6, "variant")
		last = next
	}
}

func TestAnIDOfAnotherKindIsRefused(t *testing.T) {
	t.Parallel()
	_, err := ids.Read[ids.Node](ids.Make[ids.Lease]().String())
	require.Error(t, err)
	_, err = ids.Read[ids.Lease]("lease_81h455vb4pex5vsknk084sn02q")
	require.Error(t, err, "overflows 128 bits")
	_, err = ids.Read[ids.Lease]("lease_01h455vb4pex5vsknk084sn02U")
	require.Error(t, err, "upper case")
}
