package redfish

import (
	"context"
	"net/http"
	"strings"

	"github.com/leasehold/leasehold/backend/fault"
)

// bios is Redfish's Bios.
//
//nolint:tagliatelle // Redfish's names.
type bios struct {
	Attributes map[string]any `json:"Attributes"`
	Settings   struct {
		Object link `json:"SettingsObject"`
	} `json:"@Redfish.Settings"`
	Actions struct {
		Reset action `json:"#Bios.ResetBios"`
	} `json:"Actions"`
}

func (c *Client) readBIOS(ctx context.Context) (bios, string, error) {
	var b bios
	s, _, err := c.readSystem(ctx)
	if err != nil {
		return b, "", err
	}
	if s.Bios.ID == "" {
		return b, "", fault.New(fault.Invalid, codeUnsupported, "the BMC does not show the firmware's settings")
	}
	return b, s.Bios.ID, c.get(ctx, s.Bios.ID, &b)
}

// ResetBIOS implements power.Controller.
func (c *Client) ResetBIOS(ctx context.Context) error {
	b, _, err := c.readBIOS(ctx)
	if err != nil {
		return err
	}
	if b.Actions.Reset.Target == "" {
		return fault.New(fault.Invalid, codeUnsupported, "the BMC cannot set the firmware's settings back")
	}
	return c.act(ctx, "reset BIOS settings", b.Actions.Reset.Target, map[string]any{})
}

// clearing are the settings by which vendors have a TPM cleared at the next boot. Redfish itself has no action for it. None of them could
// be tried on hardware; a machine that has none of them is one on which it is unsupported.
func clearing() map[string]string {
	return map[string]string{
		"Tpm2Operation":       "Clear",    // HPE
		"Tpm2Hierarchy":       "Clear",    // Dell
		"TpmOperation":        "TpmClear", // AMI and those who build on it
		"PendingTpmOperation": "TpmClear",
	}
}

// ClearTPM implements power.Controller.
func (c *Client) ClearTPM(ctx context.Context) error {
	b, path, err := c.readBIOS(ctx)
	if err != nil {
		return err
	}
	for name, value := range clearing() {
		if _, there := b.Attributes[name]; !there {
			continue
		}
		target := b.Settings.Object.ID
		if target == "" {
			target = strings.TrimSuffix(path, "/") + "/Settings"
		}
		answer, err := c.do(ctx, http.MethodPatch, target, map[string]any{"Attributes": map[string]string{name: value}}, nil)
		if err != nil {
			return err
		}
		return c.settle(ctx, "clear TPM", answer)
	}
	return fault.New(fault.Invalid, codeUnsupported, "the BMC shows no setting that clears the TPM")
}
