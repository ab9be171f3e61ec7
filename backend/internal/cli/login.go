package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/leasehold/leasehold/backend/client"
)

func loginCommand(o *options) *cobra.Command {
	var email string
	command := &cobra.Command{
		Use:   "login",
		Short: "Log in: in a browser, or with --email and a password",
		Long: "Log in. Without --email a browser does it, on this machine or any other: open the page that is printed and approve the code.\n" +
			"With --email the password is read from the terminal, or from standard input when that is no terminal, and then the code of your\n" +
			"authenticator app when you have one. Scripts set $" + envAPIKey + " instead and need no log-in.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			server := firstOf(o.server, os.Getenv(envServer), DefaultServer)
			if email == "" {
				return deviceLogin(cmd.Context(), server, o.printer(cmd))
			}
			asker := newAsker(cmd.InOrStdin(), cmd.ErrOrStderr())
			password, err := asker.secret("Password: ")
			if err != nil {
				return err
			}
			return login(cmd.Context(), server, email, password, asker, o.printer(cmd))
		},
	}
	command.Flags().StringVar(&email, "email", "", "your e-mail address")
	return command
}

func login(ctx context.Context, server, email, password string, asker *asker, p printer) error {
	api, err := dial(server, "")
	if err != nil {
		return err
	}
	wish := client.SessionCreate{Email: email, Password: password}
	for {
		answer, err := api.CreateSessionWithResponse(ctx, wish)
		if err != nil {
			return unreachable(server, err)
		}
		session, err := take(answer.JSON201, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
		var problem *Problem
		if wish.Code == nil && errors.As(err, &problem) && problem.Type == "/problems/second-factor-required" {
			code, err := asker.line("Code of your authenticator app, or a recovery code: ")
			if err != nil {
				return err
			}
			wish.Code = &code
			continue
		}
		if err != nil {
			return err
		}
		return keepLogin(server, session, answer.HTTPResponse, p)
	}
}

func keepLogin(server string, session *client.Session, response *http.Response, p printer) error {
	saved := credentials{Server: server}
	saved.keep(session, response)
	if err := saved.save(); err != nil {
		return err
	}
	return p.show(session.Me, func(w io.Writer) { describeMe(w, &session.Me) })
}

// deviceLogin has somebody approve in a browser, wherever that is.
func deviceLogin(ctx context.Context, server string, p printer) error {
	api, err := dial(server, "")
	if err != nil {
		return err
	}
	name := "leasehold"
	if host, err := os.Hostname(); err == nil {
		name += " on " + cut(host, 60)
	}
	answer, err := api.StartDeviceAuthorizationWithResponse(ctx, client.DeviceStart{Client: &name})
	if err != nil {
		return unreachable(server, err)
	}
	codes, err := take(answer.JSON201, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
	if err != nil {
		return err
	}
	p.note("Open " + codes.VerificationURLComplete + "\nand approve the code " + codes.UserCode + ". Waiting…")
	for {
		if !pauseFor(ctx, time.Duration(codes.IntervalSeconds)*time.Second) {
			return ctx.Err()
		}
		answer, err := api.ClaimDeviceAuthorizationWithResponse(ctx, client.DeviceClaim{DeviceCode: codes.DeviceCode})
		if err != nil {
			return unreachable(server, err)
		}
		session, err := take(answer.JSON201, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
		var problem *Problem
		if errors.As(err, &problem) && (problem.Type == "/problems/authorization-pending" || problem.Type == "/problems/slow-down") {
			continue
		}
		if err != nil {
			return err
		}
		return keepLogin(server, session, answer.HTTPResponse, p)
	}
}

// asker asks for lines, on the terminal or from what stands in for it.
type asker struct {
	lines    *bufio.Reader
	terminal *os.File // nil: none
	prompt   io.Writer
}

func newAsker(in io.Reader, prompt io.Writer) *asker {
	a := &asker{lines: bufio.NewReader(in), prompt: prompt}
	if file, ok := in.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		a.terminal = file
	}
	return a
}

// secret asks for what must not be seen.
func (a *asker) secret(words string) (string, error) {
	if a.terminal == nil {
		return a.line("")
	}
	fmt.Fprint(a.prompt, words)
	password, err := term.ReadPassword(int(a.terminal.Fd()))
	fmt.Fprintln(a.prompt)
	if err != nil {
		return "", fmt.Errorf("read password: %w", err)
	}
	return string(password), nil
}

func (a *asker) line(words string) (string, error) {
	if words != "" {
		fmt.Fprint(a.prompt, words)
	}
	line, err := a.lines.ReadString('\n')
	if err != nil && line == "" {
		return "", fmt.Errorf("read standard input: %w", err)
	}
	return strings.TrimRight(line, "\r\n"), nil
}

func secondFactorCommand(o *options) *cobra.Command {
	command := &cobra.Command{Use: "second-factor", Short: "Protect your log-in with an authenticator app"}
	setUp := &cobra.Command{
		Use: "set-up", Short: "Set one-time passwords up; recovery codes are shown once", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			asker := newAsker(cmd.InOrStdin(), cmd.ErrOrStderr())
			return o.connected(func(ctx context.Context, c *connection, p printer, _ []string) error {
				return setUpFactor(ctx, c, asker, p)
			})(cmd, args)
		},
	}
	remove := &cobra.Command{
		Use: "remove", Short: "Remove it, with a code or a recovery code", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			asker := newAsker(cmd.InOrStdin(), cmd.ErrOrStderr())
			return o.connected(func(ctx context.Context, c *connection, p printer, _ []string) error {
				code, err := asker.line("Code: ")
				if err != nil {
					return err
				}
				answer, err := c.RemoveSecondFactorWithResponse(ctx, &client.RemoveSecondFactorParams{IdempotencyKey: fresh()}, client.SecondFactorCode{Code: code})
				if err != nil {
					return unreachable(c.server, err)
				}
				if err := done(http.StatusNoContent, answer.ApplicationProblemJSONDefault, answer.HTTPResponse); err != nil {
					return err
				}
				return p.done("removed", "second-factor", "Removed. The password alone logs you in.")
			})(cmd, args)
		},
	}
	command.AddCommand(setUp, remove)
	return command
}

func setUpFactor(ctx context.Context, c *connection, asker *asker, p printer) error {
	begun, err := c.BeginSecondFactorWithResponse(ctx, &client.BeginSecondFactorParams{IdempotencyKey: fresh()})
	if err != nil {
		return unreachable(c.server, err)
	}
	factor, err := take(begun.JSON201, begun.ApplicationProblemJSONDefault, begun.HTTPResponse)
	if err != nil {
		return err
	}
	p.note("Give this secret to your authenticator app: " + or(factor.Secret, "") + "\nor this address: " + or(factor.OtpauthURL, ""))
	code, err := asker.line("Code that the app shows: ")
	if err != nil {
		return err
	}
	answer, err := c.ConfirmSecondFactorWithResponse(ctx, &client.ConfirmSecondFactorParams{IdempotencyKey: fresh()}, client.SecondFactorCode{Code: code})
	if err != nil {
		return unreachable(c.server, err)
	}
	codes, err := take(answer.JSON201, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
	if err != nil {
		return err
	}
	return p.show(codes, func(w io.Writer) {
		row(w, "Set up. Keep these recovery codes; each replaces one code, once:")
		if codes.RecoveryCodes != nil {
			for _, code := range *codes.RecoveryCodes {
				row(w, code)
			}
		}
	})
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
