package cli

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/leasehold/leasehold/backend/client"
)

func loginCommand(o *options) *cobra.Command {
	var email string
	command := &cobra.Command{
		Use:   "login",
		Short: "Log in with e-mail and password",
		Long: "Log in with e-mail and password. The password is read from the terminal, or from standard input when that is no terminal.\n" +
			"Scripts set $" + envAPIKey + " instead and need no log-in.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			password, err := readPassword(cmd.InOrStdin(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return login(cmd.Context(), firstOf(o.server, os.Getenv(envServer), DefaultServer), email, password, o.printer(cmd))
		},
	}
	command.Flags().StringVar(&email, "email", "", "your e-mail address")
	_ = command.MarkFlagRequired("email")
	return command
}

func login(ctx context.Context, server, email, password string, p printer) error {
	api, err := dial(server, "")
	if err != nil {
		return err
	}
	answer, err := api.CreateSessionWithResponse(ctx, client.SessionCreate{Email: email, Password: password})
	if err != nil {
		return unreachable(server, err)
	}
	session, err := take(answer.JSON201, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
	if err != nil {
		return err
	}
	saved := credentials{Server: server}
	saved.keep(session, answer.HTTPResponse)
	if err := saved.save(); err != nil {
		return err
	}
	return p.show(session.Me, func(w io.Writer) { describeMe(w, &session.Me) })
}

func readPassword(in io.Reader, prompt io.Writer) (string, error) {
	if file, ok := in.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		fmt.Fprint(prompt, "Password: ")
		password, err := term.ReadPassword(int(file.Fd()))
		fmt.Fprintln(prompt)
		if err != nil {
			return "", fmt.Errorf("read password: %w", err)
		}
		return string(password), nil
	}
	line, err := bufio.NewReader(in).ReadString('\n')
	if err != nil && line == "" {
		return "", fmt.Errorf("read password: %w", err)
	}
	return strings.TrimRight(line, "\r\n"), nil
}

func logoutCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "logout",
		Short: "End the session",
		Args:  cobra.NoArgs,
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, _ []string) error {
			if os.Getenv(envAPIKey) != "" {
				return fmt.Errorf("$%s is set: an API key has no session to end; revoke it with: leasehold keys remove KEY", envAPIKey)
			}
			answer, err := c.DeleteSessionWithResponse(ctx, &client.DeleteSessionParams{IdempotencyKey: fresh()})
			if err != nil {
				return unreachable(c.server, err)
			}
			if err := done(http.StatusNoContent, answer.ApplicationProblemJSONDefault, answer.HTTPResponse); err != nil {
				return err
			}
			if err := (credentials{Server: c.server}).save(); err != nil {
				return err
			}
			return p.done("logged_out", c.server, "Logged out of "+c.server)
		}),
	}
}

func whoamiCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "whoami",
		Short: "Show who you are",
		Args:  cobra.NoArgs,
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, _ []string) error {
			answer, err := c.GetMeWithResponse(ctx)
			if err != nil {
				return unreachable(c.server, err)
			}
			me, err := take(answer.JSON200, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
			if err != nil {
				return err
			}
			return p.show(me, func(w io.Writer) { describeMe(w, me) })
		}),
	}
}

func describeMe(w io.Writer, me *client.Me) {
	if me.User != nil {
		row(w, "User", me.User.Email)
	} else {
		row(w, "API key", me.Actor)
	}
	row(w, "Organization", me.Organization.Name+" ("+string(me.Organization.Kind)+")")
	row(w, "Role", me.Role)
	if me.PaymentGateway == client.MePaymentGatewayTest {
		row(w, "Payments", "test gateway: no real money moves")
	}
}
