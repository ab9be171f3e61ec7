package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/leasehold/leasehold/backend/app"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/image"
	"github.com/leasehold/leasehold/backend/power"
)

// opened runs a command on the installation that the environment names.
func opened(run func(ctx context.Context, a *app.App, cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		a, err := app.Open(cmd.Context(), app.ConfigFromEnv())
		if err != nil {
			return err
		}
		return errors.Join(run(cmd.Context(), a, cmd, args), a.Close())
	}
}

// machineCommand is for whoever runs the installation: BMCs' passwords are given to it, and are read from a file.
func machineCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "machine",
		Short: "Make machines that are leased whole known by their BMCs",
		Long:  app.EnvironmentHelp,
	}
	command.AddCommand(machineRegisterCommand(), machineShowCommand(), machineRecallCommand())
	return command
}

func machineRegisterCommand() *cobra.Command {
	var site, passwordFile, pin string
	var r power.Registration
	command := &cobra.Command{
		Use:   "register NAME",
		Short: "Make a machine known, or change how its BMC is reached; a new one boots the service OS",
		Args:  cobra.ExactArgs(1),
		RunE: opened(func(ctx context.Context, a *app.App, cmd *cobra.Command, args []string) error {
			password, err := os.ReadFile(passwordFile)
			if err != nil {
				return fmt.Errorf("read the BMC's password: %w", err)
			}
			if r.Pin, err = hex.DecodeString(strings.ReplaceAll(pin, ":", "")); err != nil {
				return fmt.Errorf("read the certificate's SHA-256: %w", err)
			}
			r.Name, r.Password = args[0], strings.TrimRight(string(password), "\r\n")
			node, err := a.RegisterMachine(ctx, site, r)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), node)
			return nil
		}),
	}
	flags := command.Flags()
	flags.StringVar(&site, "site", "", "the site where it stands")
	flags.StringVar(&r.URL, "bmc", "", "https://host[:port] of its BMC")
	flags.StringVar(&r.User, "user", "", "user of the BMC")
	flags.StringVar(&passwordFile, "password-file", "", "file with the user's password")
	flags.StringVar(&pin, "certificate-sha256", "", "SHA-256 of the BMC's certificate, in hex; without it the system's authorities decide")
	flags.StringVar(&r.System, "system", "", "path of the machine on the BMC, if that manages several")
	flags.StringSliceVar(&r.MACs, "mac", nil, "addresses of the network cards that it boots from")
	flags.StringVar(&r.AccessHost, "access-host", "", "where its tenants log in (default: the address that its system phones home from)")
	flags.IntVar(&r.AccessPort, "access-port", 0, "port of that (default 22)")
	for _, name := range []string{"site", "bmc", "user", "password-file", "mac"} {
		_ = command.MarkFlagRequired(name) //nolint:errcheck // the flag is defined right above
	}
	return command
}

func machineShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show NODE",
		Short: "Ask a machine's BMC: system, console, chassis, firmware, event log",
		Args:  cobra.ExactArgs(1),
		RunE: opened(func(ctx context.Context, a *app.App, cmd *cobra.Command, args []string) error {
			node, err := ids.Read[ids.Node](args[0])
			if err != nil {
				return err
			}
			found, err := a.InspectMachine(ctx, node)
			if err != nil {
				return err
			}
			encoder := json.NewEncoder(cmd.OutOrStdout())
			encoder.SetIndent("", "  ")
			return encoder.Encode(found)
		}),
	}
}

func machineRecallCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "recall NODE",
		Short: "Have a machine that nobody has boot the service OS anew",
		Args:  cobra.ExactArgs(1),
		RunE: opened(func(ctx context.Context, a *app.App, _ *cobra.Command, args []string) error {
			node, err := ids.Read[ids.Node](args[0])
			if err != nil {
				return err
			}
			return a.RecallMachine(ctx, node)
		}),
	}
}

// imageCommand keeps the register of disk images.
func imageCommand() *cobra.Command {
	command := &cobra.Command{Use: "image", Short: "Keep the register of disk images for machines that are leased whole", Long: app.EnvironmentHelp}
	var i image.Image
	add := &cobra.Command{
		Use:   "add NAME",
		Short: "Register an image, or another file under its name",
		Args:  cobra.ExactArgs(1),
		RunE: opened(func(ctx context.Context, a *app.App, _ *cobra.Command, args []string) error {
			i.Name = args[0]
			return a.Images().Put(ctx, i)
		}),
	}
	add.Flags().StringVar(&i.URL, "url", "", "where machines in the service OS fetch the file")
	add.Flags().StringVar(&i.Format, "format", "qcow2", "raw or qcow2")
	add.Flags().StringVar(&i.SHA256, "sha256", "", "SHA-256 of the file, in hex")
	add.Flags().Int64Var(&i.SizeBytes, "size", 0, "size of the file, in bytes")
	list := &cobra.Command{
		Use:   "list",
		Short: "List the images",
		Args:  cobra.NoArgs,
		RunE: opened(func(ctx context.Context, a *app.App, cmd *cobra.Command, _ []string) error {
			found, err := a.Images().List(ctx)
			if err != nil {
				return err
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			for _, i := range found {
				fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\n", i.Name, i.Format, i.SizeBytes, i.SHA256, i.URL)
			}
			return w.Flush()
		}),
	}
	remove := &cobra.Command{
		Use:   "remove NAME",
		Short: "Take an image off the register; leases that have it stay as they are",
		Args:  cobra.ExactArgs(1),
		RunE: opened(func(ctx context.Context, a *app.App, _ *cobra.Command, args []string) error {
			return a.Images().Remove(ctx, args[0])
		}),
	}
	command.AddCommand(add, list, remove)
	return command
}
