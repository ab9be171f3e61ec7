package cli

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasehold/leasehold/backend/client"
	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/internal/courier"
	"github.com/leasehold/leasehold/backend/webhook"
)

// envWebhookSecret lets a receiver that is being written keep one secret from run to run.
const envWebhookSecret = "LEASEHOLD_WEBHOOK_SECRET" //nolint:gosec // the variable's name, not a secret

// listener follows the feed of events and hands each of them on.
type listener struct {
	server  string // as on the command line
	types   []string
	forward string
	secret  string
	sender  webhook.Sender
	print   printer
	after   int64
	idle    time.Duration // between tries while the server cannot be reached
}

func listenCommand(o *options) *cobra.Command {
	l := listener{idle: 2 * time.Second}
	var since int64
	command := &cobra.Command{
		Use:   "listen",
		Short: "Print events as they happen, and forward them to a receiver on this machine",
		Long: "Print events as they happen, and forward them to a receiver on this machine, signed as a webhook is.\n" +
			"It asks the server for them by long polls: nothing of this machine need be reachable, and no endpoint is made.\n\n" +
			"  leasehold webhooks listen --event 'lease.*' --forward http://127.0.0.1:3000/hooks\n\n" +
			"The secret of the signatures is printed, or taken from $" + envWebhookSecret + ". With -o json each event is a line.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if l.forward != "" && !strings.HasPrefix(l.forward, "http://") && !strings.HasPrefix(l.forward, "https://") {
				return usagef("a receiver's address begins with http:// or https://; it is %q", l.forward)
			}
			l.server, l.print, l.after = o.server, o.printer(cmd), since
			if err := l.prepare(); err != nil {
				return err
			}
			return l.run(cmd.Context())
		},
	}
	command.Flags().StringSliceVar(&l.types, "event", nil, "types such as lease.active, families such as lease.* (default: everything)")
	command.Flags().StringVar(&l.forward, "forward", "", "the receiver's URL")
	command.Flags().Int64Var(&since, "after", -1, "begin behind this number (default: with what happens from now on)")
	return command
}

func (l *listener) prepare() error {
	if l.forward == "" {
		return nil
	}
	l.secret, l.sender = os.Getenv(envWebhookSecret), courier.New(clock.System{}, true)
	if l.secret != "" {
		return nil
	}
	raw := make([]byte, 32)
	if _, err := rand.Read(raw); err != nil {
		return fmt.Errorf("draw secret: %w", err)
	}
	l.secret = "whsec_" + base64.StdEncoding.EncodeToString(raw)
	l.print.note("The secret of this run is " + l.secret)
	return nil
}

// run listens until ctx ends. A server that is away for a while is waited for; a log-in that has run out is renewed.
func (l *listener) run(ctx context.Context) error {
	c, err := connect(ctx, l.server)
	if err != nil {
		return err
	}
	l.print.note("Listening to " + c.server + ". Stop with Ctrl-C.")
	wait := "30s"
	for {
		events, err := l.ask(ctx, c, &client.ListEventsParams{After: &l.after, Wait: &wait})
		var problem *Problem
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // it was asked to stop
		case err == nil:
			if err := l.hand(ctx, events); err != nil {
				return err
			}
		case errors.As(err, &problem) && problem.Status == http.StatusUnauthorized:
			if c, err = connect(ctx, l.server); err != nil {
				return err
			}
		case ExitStatus(err) != ExitUnavailable:
			return err
		default:
			l.print.note(err.Error() + "; trying again")
			if !pauseFor(ctx, l.idle) {
				return nil
			}
		}
	}
}

func pauseFor(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

func (l *listener) ask(ctx context.Context, c *connection, params *client.ListEventsParams) (*client.EventList, error) {
	answer, err := c.ListEventsWithResponse(ctx, params)
	if err != nil {
		return nil, unreachable(c.server, err)
	}
	return take(answer.JSON200, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
}

// hand prints and forwards a page of events, and goes on behind it.
func (l *listener) hand(ctx context.Context, list *client.EventList) error {
	if l.after < 0 {
		l.after = list.LastSequence
	}
	for _, e := range list.Items {
		l.after = e.Sequence
		if !l.wants(e.Type) {
			continue
		}
		outcome := ""
		if l.forward != "" {
			outcome = l.send(ctx, e)
		}
		if err := l.show(e, outcome); err != nil {
			return err
		}
	}
	return nil
}

func (l *listener) wants(eventType string) bool {
	return len(l.types) == 0 || slices.ContainsFunc(l.types, func(pattern string) bool {
		matched, err := path.Match(pattern, eventType)
		return err == nil && matched
	})
}

// send forwards the event once; whoever writes a receiver sees what it answers and can have it again with --after.
func (l *listener) send(ctx context.Context, e client.Event) string {
	body, err := json.Marshal(e)
	if err != nil {
		return err.Error()
	}
	answer, err := l.sender.Send(ctx, webhook.Post{URL: l.forward, ID: e.ID, At: time.Now(), Body: body, Secrets: []string{l.secret}})
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d %s", answer.Status, strings.Join(strings.Fields(answer.Body), " "))
}

func (l *listener) show(e client.Event, outcome string) error {
	if l.print.json {
		line, err := json.Marshal(e)
		if err != nil {
			return fmt.Errorf("print event: %w", err)
		}
		fmt.Fprintln(l.print.out, string(line))
		return nil
	}
	line := fmt.Sprintf("%6d  %s  %-28s %s", e.Sequence, e.Timestamp.UTC().Format("15:04:05"), e.Type, or(e.Subject, ""))
	if outcome != "" {
		line += "  → " + outcome
	} else {
		line += "  " + compact(e.Data)
	}
	if l.print.columns > 0 {
		line = cut(line, l.print.columns)
	}
	fmt.Fprintln(l.print.out, line)
	return nil
}
