package redfish

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/power"
)

// etagTries is how often a change is made again after somebody else's came between reading and writing.
const etagTries = 4

// targets are Redfish's words for a boot source, the best one first.
func targets(s power.Source) []string {
	if s == power.Network {
		return []string{"Pxe", "UefiHttp"}
	}
	return []string{"Hdd"}
}

// SetBoot implements power.Controller.
func (c *Client) SetBoot(ctx context.Context, b power.Boot) error {
	enabled := "Continuous"
	if b.Once {
		enabled = "Once"
	}
	for try := 1; ; try++ {
		s, read, err := c.readSystem(ctx)
		if err != nil {
			return err
		}
		target, err := bootTarget(s, b.Source)
		if err != nil {
			return err
		}
		answer, err := c.patchBoot(ctx, s, read, target, enabled)
		if err != nil {
			return err
		}
		if answer.status == http.StatusPreconditionFailed && try < etagTries {
			continue
		}
		if err := c.settle(ctx, "set boot override", answer); err != nil {
			return err
		}
		return c.checkBoot(ctx, target, enabled)
	}
}

func bootTarget(s computerSystem, source power.Source) (string, error) {
	words := targets(source)
	if len(s.Boot.Allowed) == 0 {
		return words[0], nil
	}
	for _, w := range words {
		if slices.Contains(s.Boot.Allowed, w) {
			return w, nil
		}
	}
	return "", fault.New(fault.Invalid, codeUnsupported, "the BMC cannot boot from the %s: it allows %s", source, strings.Join(s.Boot.Allowed, ", "))
}

// patchBoot writes the override under the entity tag that was read. Without a tag there is none to give, and a BMC that wants any
// (428) gets the one that always fits.
func (c *Client) patchBoot(ctx context.Context, s computerSystem, read *answer, target, enabled string) (*answer, error) {
	change := map[string]any{"Boot": map[string]string{"BootSourceOverrideTarget": target, "BootSourceOverrideEnabled": enabled}}
	header := map[string]string{}
	if tag := cmp.Or(read.header.Get("ETag"), s.Etag); tag != "" {
		header["If-Match"] = tag
	}
	answer, err := c.do(ctx, http.MethodPatch, s.ID, change, header)
	if err == nil && answer.status == http.StatusPreconditionRequired {
		answer, err = c.do(ctx, http.MethodPatch, s.ID, change, map[string]string{"If-Match": "*"})
	}
	return answer, err
}

// checkBoot reads the override back: some BMCs take what they do not do.
func (c *Client) checkBoot(ctx context.Context, target, enabled string) error {
	s, _, err := c.readSystem(ctx)
	if err != nil {
		return err
	}
	if s.Boot.Target != target || s.Boot.Enabled != enabled {
		return fault.New(fault.Conflict, codeRefused, "the BMC took the boot override %s %s and still says %s %s", enabled, target, s.Boot.Enabled, s.Boot.Target)
	}
	return nil
}
