package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasehold/leasehold/backend/app"
	"github.com/leasehold/leasehold/backend/internal/cli"
	"github.com/leasehold/leasehold/frontend"
	"github.com/leasehold/leasehold/migrations"
)

// apiCommand serves the API and the portal, as one of any number of replicas.
func apiCommand() *cobra.Command {
	var address string
	command := &cobra.Command{
		Use:   "api",
		Short: "Serve API and portal (configured by the environment; any number of replicas)",
		Long:  app.EnvironmentHelp,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config := app.ConfigFromEnv()
			config.Portal = frontend.Files()
			a, err := app.Open(cmd.Context(), config)
			if err != nil {
				return err
			}
			defer a.Close() //nolint:errcheck // the process ends
			listener, err := listen(cmd.Context(), address)
			if err != nil {
				return err
			}
			server, err := a.Server(cmd.Context())
			if err != nil {
				return err
			}
			go func() {
				<-cmd.Context().Done()
				grace, cancel := context.WithTimeout(context.Background(), 20*time.Second)
				defer cancel()
				_ = server.Shutdown(grace)
			}()
			if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("serve: %w", err)
			}
			return nil
		},
	}
	command.Flags().StringVar(&address, "listen", "127.0.0.1:8080", "where to listen")
	return command
}

func workerCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "worker",
		Short: "Run workflows, the outbox relay and the reconciler (any number of replicas)",
		Long:  app.EnvironmentHelp,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			a, err := app.Open(cmd.Context(), app.ConfigFromEnv())
			if err != nil {
				return err
			}
			defer a.Close() //nolint:errcheck // the process ends
			return a.Work(cmd.Context())
		},
	}
}

func migrateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "migrate",
		Short: "Bring the database's schema up to date ($LEASEHOLD_MIGRATE_DATABASE_URL, else $DATABASE_URL)",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			url := os.Getenv("LEASEHOLD_MIGRATE_DATABASE_URL")
			if url == "" {
				url = os.Getenv("DATABASE_URL")
			}
			if url == "" {
				return errors.New("set DATABASE_URL")
			}
			return migrations.Up(cmd.Context(), url)
		},
	}
}

// doctorCommand checks the invariants directly on a database; `leasehold admin doctor` asks a server to.
func doctorCommand() *cobra.Command {
	dev := devOptions{}
	command := &cobra.Command{
		Use:   "doctor",
		Short: "Check every invariant on the live database; status 8 on a breach",
		Long:  "Looks at the database and the Temporal server of the environment, else at those of the running `leasehold dev`.\n\n" + app.EnvironmentHelp,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config := app.ConfigFromEnv()
			if config.DatabaseURL == "" {
				running, err := readServices(dev.dataDir)
				if err != nil {
					return err
				}
				config.DatabaseURL, config.TemporalAddress, config.TemporalNamespace = running.DatabaseURL, running.TemporalAddress, running.TemporalNamespace
				config.KeysDir = filepath.Join(dev.dataDir, "keys")
			}
			a, err := app.Open(cmd.Context(), config)
			if err != nil {
				return err
			}
			defer a.Close() //nolint:errcheck // the process ends
			healthy, err := a.Doctor(cmd.Context(), cmd.OutOrStdout())
			if err != nil {
				return err
			}
			if !healthy {
				return &cli.Unhealthy{Detail: "at least one invariant is broken"}
			}
			return nil
		},
	}
	dev.bindDataDir(command.Flags())
	return command
}
