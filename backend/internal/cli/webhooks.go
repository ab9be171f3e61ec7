package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasehold/leasehold/backend/client"
)

func webhooksCommand(o *options) *cobra.Command {
	command := &cobra.Command{Use: "webhooks", Short: "Be told what happens to your things"}
	command.AddCommand(
		listWebhooksCommand(o), addWebhookCommand(o), showWebhookCommand(o), switchWebhookCommand(o, true), switchWebhookCommand(o, false), removeWebhookCommand(o),
		rotateWebhookCommand(o), testWebhookCommand(o), webhookLogCommand(o), replayWebhookCommand(o), listenCommand(o),
	)
	return command
}

func listWebhooksCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List webhook endpoints",
		Args:  cobra.NoArgs,
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, _ []string) error {
			all := client.WebhookEndpointList{Items: []client.WebhookEndpoint{}}
			err := pages(func(cursor *string) (*client.WebhookEndpointList, *httpResponse, error) {
				answer, err := c.ListWebhookEndpointsWithResponse(ctx, &client.ListWebhookEndpointsParams{Cursor: cursor})
				if err != nil {
					return nil, nil, unreachable(c.server, err)
				}
				page, err := take(answer.JSON200, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
				return page, answer.HTTPResponse, err
			}, func(page *client.WebhookEndpointList) { all.Items = append(all.Items, page.Items...) })
			if err != nil {
				return err
			}
			return p.list(all, func(w io.Writer) {
				if len(all.Items) == 0 {
					row(w, "No webhooks yet. Add one: leasehold webhooks add https://…")
					return
				}
				row(w, "WEBHOOK", "STATE", "EVENTS", "URL")
				for _, e := range all.Items {
					row(w, e.ID, standing(e), typesOf(e), e.URL)
				}
			})
		}),
	}
}

// standing says in a word or two how an endpoint does.
func standing(e client.WebhookEndpoint) string {
	switch {
	case !e.Enabled && e.DisabledReason != nil:
		return "disabled: " + string(*e.DisabledReason)
	case !e.Enabled:
		return "disabled"
	case e.FailingSince != nil:
		return "failing since " + instant(*e.FailingSince)
	default:
		return "enabled"
	}
}

func typesOf(e client.WebhookEndpoint) string {
	if len(e.EventTypes) == 0 {
		return "all"
	}
	return strings.Join(e.EventTypes, ",")
}

func describeWebhook(w io.Writer, e *client.WebhookEndpoint) {
	row(w, "Webhook", e.ID)
	row(w, "URL", e.URL)
	row(w, "Events", typesOf(*e))
	row(w, "State", standing(*e))
	if e.Description != "" {
		row(w, "Description", e.Description)
	}
	if e.Secret != nil {
		row(w, "Secret", *e.Secret)
		row(w, "", "It is not shown again. Your receiver verifies signatures with it.")
	}
	if e.PreviousSecretValidUntil != nil {
		row(w, "Old secret", "signs too until "+instant(*e.PreviousSecretValidUntil))
	}
}

func addWebhookCommand(o *options) *cobra.Command {
	var types []string
	var description string
	command := &cobra.Command{
		Use:   "add URL",
		Short: "Have events sent to a URL; its secret is shown once",
		Args:  cobra.ExactArgs(1),
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, args []string) error {
			wish := client.WebhookEndpointCreate{URL: args[0], Description: optional(description)}
			if len(types) > 0 {
				wish.EventTypes = &types
			}
			answer, err := c.CreateWebhookEndpointWithResponse(ctx, &client.CreateWebhookEndpointParams{IdempotencyKey: fresh()}, wish)
			if err != nil {
				return unreachable(c.server, err)
			}
			made, err := take(answer.JSON201, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
			if err != nil {
				return err
			}
			return p.show(made, func(w io.Writer) { describeWebhook(w, made) })
		}),
	}
	command.Flags().StringSliceVar(&types, "event", nil, "what to be told: types such as lease.active, families such as lease.* (default: everything)")
	command.Flags().StringVar(&description, "description", "", "what it is for")
	return command
}

func getWebhook(ctx context.Context, c *connection, id string) (*client.WebhookEndpoint, string, error) {
	answer, err := c.GetWebhookEndpointWithResponse(ctx, id)
	if err != nil {
		return nil, "", unreachable(c.server, err)
	}
	e, err := take(answer.JSON200, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
	if err != nil {
		return nil, "", err
	}
	return e, answer.HTTPResponse.Header.Get("ETag"), nil
}

func showWebhookCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "show WEBHOOK",
		Short: "Show a webhook endpoint",
		Args:  cobra.ExactArgs(1),
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, args []string) error {
			e, _, err := getWebhook(ctx, c, args[0])
			if err != nil {
				return err
			}
			return p.show(e, func(w io.Writer) { describeWebhook(w, e) })
		}),
	}
}

func switchWebhookCommand(o *options, on bool) *cobra.Command {
	use, short := "disable WEBHOOK", "Send nothing more; what is pending can be replayed later"
	if on {
		use, short = "enable WEBHOOK", "Send again, from now on; `replay` brings what was missed"
	}
	return &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.ExactArgs(1),
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, args []string) error {
			_, seen, err := getWebhook(ctx, c, args[0])
			if err != nil {
				return err
			}
			answer, err := c.UpdateWebhookEndpointWithResponse(ctx, args[0],
				&client.UpdateWebhookEndpointParams{IdempotencyKey: fresh(), IfMatch: &seen}, client.WebhookEndpointUpdate{Enabled: &on})
			if err != nil {
				return unreachable(c.server, err)
			}
			e, err := take(answer.JSON200, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
			if err != nil {
				return err
			}
			return p.show(e, func(w io.Writer) { describeWebhook(w, e) })
		}),
	}
}

func removeWebhookCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "remove WEBHOOK",
		Short: "Take a webhook endpoint away",
		Args:  cobra.ExactArgs(1),
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, args []string) error {
			answer, err := c.DeleteWebhookEndpointWithResponse(ctx, args[0], &client.DeleteWebhookEndpointParams{IdempotencyKey: fresh()})
			if err != nil {
				return unreachable(c.server, err)
			}
			if err := done(http.StatusNoContent, answer.ApplicationProblemJSONDefault, answer.HTTPResponse); err != nil {
				return err
			}
			return p.done("removed", args[0], "Removed. What was still to be delivered is not.")
		}),
	}
}

func rotateWebhookCommand(o *options) *cobra.Command {
	var overlap span
	var leaked bool
	command := &cobra.Command{
		Use:   "rotate WEBHOOK",
		Short: "Make a new secret; the old one signs as well for a day",
		Args:  cobra.ExactArgs(1),
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, args []string) error {
			wish := client.WebhookSecretRotation{}
			if overlap != 0 {
				wish.OverlapSeconds = new(int(time.Duration(overlap).Seconds()))
			}
			if leaked {
				wish.OverlapSeconds = new(0)
			}
			answer, err := c.RotateWebhookSecretWithResponse(ctx, args[0], &client.RotateWebhookSecretParams{IdempotencyKey: fresh()}, wish)
			if err != nil {
				return unreachable(c.server, err)
			}
			e, err := take(answer.JSON201, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
			if err != nil {
				return err
			}
			return p.show(e, func(w io.Writer) { describeWebhook(w, e) })
		}),
	}
	command.Flags().Var(&overlap, "overlap", "how long the old secret signs as well, at most 7d (default 1d)")
	command.Flags().BoolVar(&leaked, "leaked", false, "the old secret signs no more, from now on")
	command.MarkFlagsMutuallyExclusive("overlap", "leaked")
	return command
}

func testWebhookCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "test WEBHOOK",
		Short: "Send a webhook.ping; `log` shows how it went",
		Args:  cobra.ExactArgs(1),
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, args []string) error {
			answer, err := c.TestWebhookEndpointWithResponse(ctx, args[0], &client.TestWebhookEndpointParams{IdempotencyKey: fresh()})
			if err != nil {
				return unreachable(c.server, err)
			}
			made, err := take(answer.JSON202, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
			if err != nil {
				return err
			}
			return p.done("event_id", made.EventID, "Event "+made.EventID+" is on its way. See: leasehold webhooks log "+args[0])
		}),
	}
}

func webhookLogCommand(o *options) *cobra.Command {
	var state string
	var most int
	command := &cobra.Command{
		Use:   "log WEBHOOK",
		Short: "Show what was delivered, and what the endpoint answered",
		Args:  cobra.ExactArgs(1),
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, args []string) error {
			answer, err := c.ListWebhookDeliveriesWithResponse(ctx, args[0],
				&client.ListWebhookDeliveriesParams{Limit: &most, State: (*client.WebhookDeliveryState)(optional(state))})
			if err != nil {
				return unreachable(c.server, err)
			}
			log, err := take(answer.JSON200, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
			if err != nil {
				return err
			}
			return p.list(log, func(w io.Writer) {
				row(w, "DELIVERY", "#", "EVENT", "STATE", "TRIES", "LAST ANSWER")
				for _, d := range log.Items {
					row(w, d.ID, d.Sequence, d.EventType, d.State, d.Tries, lastAnswer(d))
				}
			})
		}),
	}
	command.Flags().StringVar(&state, "state", "", "pending, delivered or failed (default: all)")
	command.Flags().IntVar(&most, "limit", 50, "how many, the newest first; at most 200")
	return command
}

func lastAnswer(d client.WebhookDelivery) string {
	a := d.LastAttempt
	if a == nil {
		return "–"
	}
	text := ""
	if a.Status != nil {
		text = fmt.Sprintf("%d ", *a.Status)
	}
	text += or(a.Error, strings.Join(strings.Fields(or(a.Body, "")), " "))
	if d.State == client.WebhookDeliveryStatePending && d.NextAt != nil {
		text += "; again " + instant(*d.NextAt)
	}
	return strings.TrimSpace(text)
}

func replayWebhookCommand(o *options) *cobra.Command {
	var since span
	var failed bool
	command := &cobra.Command{
		Use:   "replay WEBHOOK [DELIVERY]...",
		Short: "Deliver again: some deliveries, or all since a while ago",
		Args:  cobra.MinimumNArgs(1),
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, args []string) error {
			wish := client.WebhookReplay{}
			if len(args) > 1 {
				wish.DeliveryIds = new(args[1:])
			}
			if since != 0 {
				wish.Since = new(time.Now().Add(-time.Duration(since)).UTC())
			}
			if failed {
				wish.State = new(client.WebhookDeliveryStateFailed)
			}
			answer, err := c.ReplayWebhookDeliveriesWithResponse(ctx, args[0], &client.ReplayWebhookDeliveriesParams{IdempotencyKey: fresh()}, wish)
			if err != nil {
				return unreachable(c.server, err)
			}
			made, err := take(answer.JSON202, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
			if err != nil {
				return err
			}
			return p.show(made, func(w io.Writer) { row(w, fmt.Sprintf("%d deliveries are due again.", made.Deliveries)) })
		}),
	}
	command.Flags().Var(&since, "since", "all that happened since so long ago, e.g. 6h, with what it was not sent while it was disabled")
	command.Flags().BoolVar(&failed, "failed", false, "with --since: only what failed")
	return command
}
