package keys_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/internal/keys"
)

func TestASealedSecretOpensWithItsKeyAndInItsPlaceOnly(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	vault, err := keys.OpenVault(dir)
	require.NoError(t, err)
	sealed := vault.Seal([]byte("whsec"), "hook_1")
	require.NotContains(t, string(sealed), "whsec")
	require.NotEqual(t, sealed, vault.Seal([]byte("whsec"), "hook_1"), "equal secrets do not look equal")

	again, err := keys.OpenVault(dir)
	require.NoError(t, err)
	secret, err := again.Unseal(sealed, "hook_1")
	require.NoError(t, err)
	require.Equal(t, "whsec", string(secret))

	_, err = vault.Unseal(sealed, "hook_2")
	require.Error(t, err)
	other, err := keys.OpenVault(t.TempDir())
	require.NoError(t, err)
	_, err = other.Unseal(sealed, "hook_1")
	require.Error(t, err)
}

func TestAVaultKeyThatOthersCanReadIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := keys.OpenVault(dir)
	require.NoError(t, err)
	require.NoError(t, os.Chmod(filepath.Join(dir, "secrets.key"), 0o644))
	_, err = keys.OpenVault(dir)
	require.ErrorContains(t, err, "readable by others")
}
