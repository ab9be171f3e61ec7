package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasehold/leasehold/backend/internal/demo"
)

func demoCommand() *cobra.Command {
	options := demo.Options{}
	dev := devOptions{}
	command := &cobra.Command{
		Use:   "demo",
		Short: "Do the main job against the running `leasehold dev`, or against one started for it",
		Long: "Quote, book, get isolated nodes, log in by SSH, extend, end, and check wipe certificates, charge lines and invoice.\n" +
			"Uses the instance that runs on the data directory; else starts one on a temporary directory and stops it afterwards.\n" +
			"Ends with status 0 only if every step held.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			options.Out, options.ZeroWork = cmd.OutOrStdout(), dev.speed == "instant"
			if dev.nodes == "qemu" {
				onMetal(cmd, &options)
			}
			logins, err := readLogins(dev.dataDir)
			if errors.Is(err, errNotRunning) || dev.fresh {
				return demoOnFresh(cmd, dev, options)
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(options.Out, "Using the instance at %s.\n\n", logins.URL)
			if options.Metal {
				if options.Disks, err = rackDisks(dev.dataDir); err != nil {
					return err
				}
			}
			return demo.Run(cmd.Context(), withLogins(options, logins))
		},
	}
	flags := command.Flags()
	flags.StringVar(&options.InstanceType, "type", "h100-sxm.8x.ndr", "instance type to lease")
	flags.IntVarP(&options.Instances, "instances", "n", 2, "how many instances")
	flags.DurationVar(&options.Duration, "duration", time.Minute, "how long to lease")
	flags.DurationVar(&options.Extension, "extension", 15*time.Second, "by how much to extend")
	flags.BoolVar(&dev.fresh, "fresh", false, "start an instance for the demo even if one runs")
	dev.bindSimulation(flags)
	dev.bindDataDir(flags)
	return command
}

// demoOnFresh starts a whole instance on a temporary directory and free ports, runs the demo, and takes everything down again.
func demoOnFresh(cmd *cobra.Command, dev devOptions, options demo.Options) error {
	dir, err := os.MkdirTemp("", "leasehold-demo-")
	if err != nil {
		return fmt.Errorf("make a data directory: %w", err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // temporary
	dev.dataDir, dev.listen, dev.temporalUI = dir, "127.0.0.1:0", 0
	fmt.Fprintln(options.Out, "Starting an instance for the demo.")
	instance, err := startDev(cmd.Context(), dev, options.Out)
	if err != nil {
		return err
	}
	defer instance.stop()
	fmt.Fprintln(options.Out)
	if options.Metal {
		if options.Disks, err = rackDisks(dir); err != nil {
			return err
		}
	}
	return demo.Run(cmd.Context(), withLogins(options, instance.logins))
}

func withLogins(options demo.Options, logins logins) demo.Options {
	options.Server = logins.URL
	options.Email, options.Password = logins.Customer.Email, logins.Customer.Password
	options.AdminEmail, options.AdminPass = logins.Admin.Email, logins.Admin.Password
	return options
}
