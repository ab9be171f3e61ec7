package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/leasehold/leasehold/backend/app"
)

// seedCommand makes the demonstration's organizations, people, site and prices on an installation's database, and a token with which
// a simulated site enrols. `leasehold dev` does the same for itself.
func seedCommand() *cobra.Command {
	var dir string
	command := &cobra.Command{
		Use:   "seed",
		Short: "Make demonstration organizations, people, a site with prices, and its enrolment token",
		Long:  "Writes demo-logins.json and token into --dir, mode 0600. Run again, it keeps the passwords and makes a fresh token.\n\n" + app.EnvironmentHelp,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config := app.ConfigFromEnv()
			a, err := app.Open(cmd.Context(), config)
			if err != nil {
				return err
			}
			defer a.Close() //nolint:errcheck // the process ends
			people, err := seedDemo(cmd.Context(), dir, a, config.PublicURL)
			if err != nil {
				return err
			}
			token, err := a.EnrollmentToken(cmd.Context(), app.DemoSite)
			if err != nil {
				return fmt.Errorf("make enrolment token: %w", err)
			}
			if err := os.WriteFile(filepath.Join(dir, "token"), []byte(token), 0o600); err != nil {
				return fmt.Errorf("write enrolment token: %w", err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "customer %s %s\nprovider %s %s\nadmin    %s %s\n", people.Customer.Email, people.Customer.Password,
				people.Provider.Email, people.Provider.Password, people.Admin.Email, people.Admin.Password)
			return nil
		},
	}
	command.Flags().StringVar(&dir, "dir", ".", "where to write log-ins and token")
	return command
}
