package demo

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/leasehold/leasehold/backend/client"
	"github.com/leasehold/leasehold/backend/money"
)

func (d *demo) logIn(ctx context.Context) (string, error) {
	api, session, err := open(ctx, d.options.Server, d.options.Email, d.options.Password)
	if err != nil {
		return "", err
	}
	d.api = api
	return fmt.Sprintf("%s of %s", d.options.Email, session.Me.Organization.Name), nil
}

func (d *demo) addKey(ctx context.Context) (string, error) {
	dir, err := os.MkdirTemp("", "leasehold-demo-")
	if err != nil {
		return "", fmt.Errorf("make a directory for keys: %w", err)
	}
	d.dir = dir
	public, file, err := makeKey(dir, "customer")
	if err != nil {
		return "", err
	}
	d.key = file
	answer, err := d.api.CreateSSHKeyWithResponse(ctx, &client.CreateSSHKeyParams{IdempotencyKey: fresh()},
		client.SSHKeyCreate{Name: "demo " + rand.Text()[:6], PublicKey: public})
	if err != nil {
		return "", err
	}
	key, err := got(answer.JSON201, answer.HTTPResponse, answer.Body, nil)
	if err != nil {
		return "", err
	}
	d.keyID = key.ID
	return key.Fingerprint, nil
}

// makeKey writes a fresh Ed25519 key pair and returns the public half and the private half's file.
func makeKey(dir, name string) (string, string, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return "", "", fmt.Errorf("make key: %w", err)
	}
	block, err := ssh.MarshalPrivateKey(private, "leasehold demo")
	if err != nil {
		return "", "", fmt.Errorf("encode key: %w", err)
	}
	file := filepath.Join(dir, name)
	if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
		return "", "", fmt.Errorf("write key: %w", err)
	}
	shared, err := ssh.NewPublicKey(public)
	if err != nil {
		return "", "", fmt.Errorf("encode key: %w", err)
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(shared))), file, nil
}

// topUpMinor is $5,000: more than any demonstration costs.
const topUpMinor = 500_000

func (d *demo) topUp(ctx context.Context) (string, error) {
	answer, err := d.api.CreateTopUpWithResponse(ctx, &client.CreateTopUpParams{IdempotencyKey: fresh()},
		client.TopUpCreate{Amount: client.Money{Amount: topUpMinor, Currency: "USD"}, PaymentMethod: new("pm_card_visa")})
	if err != nil {
		return "", err
	}
	topUp, err := got(answer.JSON201, answer.HTTPResponse, answer.Body, nil)
	if err != nil {
		return "", err
	}
	if topUp.State != client.TopUpStateSucceeded {
		return "", fmt.Errorf("the payment is %s", topUp.State)
	}
	balance, err := d.balance(ctx)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s through the %s gateway, %s available", amount(topUp.Amount), topUp.Gateway, amount(balance.Available)), nil
}

func (d *demo) balance(ctx context.Context) (*client.Balance, error) {
	answer, err := d.api.GetBalanceWithResponse(ctx)
	if err != nil {
		return nil, err
	}
	return got(answer.JSON200, answer.HTTPResponse, answer.Body, nil)
}

func (d *demo) search(ctx context.Context) (string, error) {
	answer, err := d.api.SearchAvailabilityWithResponse(ctx, client.AvailabilitySearch{
		InstanceType: d.options.InstanceType, Instances: d.options.Instances, DurationSeconds: new(int64(d.options.Duration / time.Second)),
	})
	if err != nil {
		return "", err
	}
	options, err := got(answer.JSON200, answer.HTTPResponse, answer.Body, nil)
	if err != nil {
		return "", err
	}
	if len(options.Items) == 0 {
		return "", errors.New("nothing is free")
	}
	best := options.Items[0]
	return fmt.Sprintf("%d × %s free at %s on %d nodes, %d leaves spanned", best.Instances, d.options.InstanceType, best.Site, best.Nodes, best.LeavesSpanned), nil
}

func (d *demo) quote(ctx context.Context) (string, error) {
	answer, err := d.api.CreateQuoteWithResponse(ctx, &client.CreateQuoteParams{IdempotencyKey: fresh()}, client.QuoteCreate{
		InstanceType: d.options.InstanceType, Instances: d.options.Instances, DurationSeconds: new(int64(d.options.Duration / time.Second)),
	})
	if err != nil {
		return "", err
	}
	if d.quoted, err = got(answer.JSON201, answer.HTTPResponse, answer.Body, nil); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s, at worst %s", d.quoted.Window.End.Sub(d.quoted.Window.Start), amount(d.quoted.Total)), nil
}

func (d *demo) book(ctx context.Context) (string, error) {
	answer, err := d.api.CreateLeaseWithResponse(ctx, &client.CreateLeaseParams{IdempotencyKey: fresh()},
		client.LeaseCreate{QuoteID: d.quoted.ID, SSHKeyIds: []string{d.keyID}, Name: new("demo")})
	if err != nil {
		return "", err
	}
	if d.lease, err = got(answer.JSON201, answer.HTTPResponse, answer.Body, nil); err != nil {
		return "", err
	}
	if d.lease.Held != d.quoted.Total {
		return "", fmt.Errorf("%s is held, not the quoted worst case %s", amount(d.lease.Held), amount(d.quoted.Total))
	}
	return fmt.Sprintf("%s, %s held", d.lease.ID, amount(d.lease.Held)), nil
}

// provision follows the lease to active, drawing every new step's progress.
func (d *demo) provision(ctx context.Context) (string, error) {
	fmt.Fprintln(d.options.Out)
	lease, err := d.follow(ctx, client.LeaseStateActive, d.patience())
	if err != nil {
		return "", err
	}
	if lease.State != client.LeaseStateActive || lease.ActiveAt == nil {
		return "", fmt.Errorf("the lease is %s: %s", lease.State, lease.Reason)
	}
	if err := d.readNodes(ctx); err != nil {
		return "", err
	}
	late := max(lease.ActiveAt.Sub(lease.Start), 0)
	ready, err := d.timeToReady(ctx)
	if err != nil {
		return "", err
	}
	said := fmt.Sprintf("%d nodes prepared and isolated in %s, active %s after the start", len(d.nodes), ready.Round(time.Millisecond), late.Round(time.Millisecond))
	if d.options.ZeroWork {
		said += fmt.Sprintf("; the nodes' work takes no time, so the control plane's own is %s", (ready + late).Round(time.Millisecond))
	}
	return said, nil
}

// patience is how long preparing and cleaning may take: machines that boot take longer than those that pretend to.
func (d *demo) patience() time.Duration {
	if d.options.Metal {
		return 20 * time.Minute
	}
	return 3 * time.Minute
}

// timeToReady is from the first to the last step before the start, by the lease's own log: the nodes' work and the control plane's.
func (d *demo) timeToReady(ctx context.Context) (time.Duration, error) {
	answer, err := d.api.ListLeaseEventsWithResponse(ctx, d.lease.ID, nil)
	if err != nil {
		return 0, err
	}
	events, err := got(answer.JSON200, answer.HTTPResponse, answer.Body, nil)
	if err != nil {
		return 0, err
	}
	var began, ready time.Time
	for _, e := range events.Items {
		switch e.Type {
		case "lease.provisioning":
			began = e.At
		case "node.prepared", "isolation.verified":
			ready = e.At
		}
	}
	if began.IsZero() || ready.IsZero() {
		return 0, errors.New("the log does not say when it was prepared")
	}
	return ready.Sub(began), nil
}

// follow long-polls until the lease has reached the state or gone past it.
func (d *demo) follow(ctx context.Context, wanted client.LeaseState, patience time.Duration) (*client.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	after, last := int64(-1), ""
	for {
		answer, err := d.api.GetLeaseWithResponse(ctx, d.lease.ID, &client.GetLeaseParams{Wait: new("20s"), AfterEvent: &after})
		if err != nil {
			return nil, err
		}
		lease, err := got(answer.JSON200, answer.HTTPResponse, answer.Body, nil)
		if err != nil {
			return nil, err
		}
		d.lease, after = lease, lease.LastEvent
		if line := fmt.Sprintf("%s %s", lease.State, lease.Progress.Step); line != last {
			shown := fmt.Sprintf("      %-12s", lease.State)
			if lease.Progress.Step != "" {
				shown += fmt.Sprintf(" %3d %%  %s", lease.Progress.Percent, lease.Progress.Step)
			}
			fmt.Fprintln(d.options.Out, strings.TrimRight(shown+" "+lease.Reason, " "))
			last = line
		}
		if rank(lease.State) >= rank(wanted) {
			return lease, nil
		}
	}
}

func rank(s client.LeaseState) int {
	order := []client.LeaseState{
		client.LeaseStateReserved, client.LeaseStateProvisioning, client.LeaseStateActive, client.LeaseStateReleasing, client.LeaseStateClosed,
	}
	for i, state := range order {
		if s == state {
			return i
		}
	}
	return len(order)
}

func (d *demo) readNodes(ctx context.Context) error {
	answer, err := d.api.ListLeaseNodesWithResponse(ctx, d.lease.ID)
	if err != nil {
		return err
	}
	nodes, err := got(answer.JSON200, answer.HTTPResponse, answer.Body, nil)
	if err != nil {
		return err
	}
	d.nodes = nodes.Items
	if len(d.nodes) != d.options.Instances {
		return fmt.Errorf("%d instances, not the %d that were booked", len(d.nodes), d.options.Instances)
	}
	return nil
}

func (d *demo) extend(ctx context.Context) (string, error) {
	current, err := d.api.GetLeaseWithResponse(ctx, d.lease.ID, nil)
	if err != nil {
		return "", err
	}
	before, err := got(current.JSON200, current.HTTPResponse, current.Body, nil)
	if err != nil {
		return "", err
	}
	etag := current.HTTPResponse.Header.Get("ETag")
	answer, err := d.api.ExtendLeaseWithResponse(ctx, d.lease.ID, &client.ExtendLeaseParams{IdempotencyKey: fresh(), IfMatch: &etag},
		client.ExtensionCreate{End: before.End.Add(d.options.Extension)})
	if err != nil {
		return "", err
	}
	extension, err := got(answer.JSON201, answer.HTTPResponse, answer.Body, nil)
	if err != nil {
		return "", err
	}
	after, err := d.api.GetLeaseWithResponse(ctx, d.lease.ID, nil)
	if err != nil {
		return "", err
	}
	if d.lease, err = got(after.JSON200, after.HTTPResponse, after.Body, nil); err != nil {
		return "", err
	}
	if !d.lease.End.Equal(before.End.Add(d.options.Extension)) {
		return "", fmt.Errorf("the end is %s", d.lease.End)
	}
	return fmt.Sprintf("to %s for %s more", d.lease.End.Format(time.TimeOnly), amount(extension.Total)), nil
}

func (d *demo) waitForEnd(ctx context.Context) (string, error) {
	fmt.Fprintln(d.options.Out)
	lease, err := d.follow(ctx, client.LeaseStateReleasing, time.Until(d.lease.End)+time.Minute)
	if err != nil {
		return "", err
	}
	if late := time.Since(lease.End); late < 0 {
		return "", fmt.Errorf("it ended %s too early", -late)
	}
	return "the clock stopped at " + lease.End.Format(time.TimeOnly), nil
}

func amount(m client.Money) string { return money.Of(m.Amount, money.Currency(m.Currency)).String() }
