package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/leasehold/leasehold/backend/app"
	"github.com/leasehold/leasehold/backend/internal/local"
	"github.com/leasehold/leasehold/backend/internal/local/postgres"
	"github.com/leasehold/leasehold/backend/internal/local/temporal"
	"github.com/leasehold/leasehold/frontend"
	"github.com/leasehold/leasehold/migrations"
)

// devOptions say how to run everything on one machine.
type devOptions struct {
	dataDir    string
	listen     string
	temporalUI int
	fabric     string
	speed      string
	images     string
	noSite     bool
	nodes      string
	accel      string
	machines   int
	fresh      bool
}

func (o *devOptions) bindDataDir(flags *pflag.FlagSet) {
	flags.StringVar(&o.dataDir, "data-dir", defaultDataDir(), "where database, keys and log-ins are kept")
}

func (o *devOptions) bindSimulation(flags *pflag.FlagSet) {
	flags.Var(newChoice(&o.fabric, "sim", "opensm"), "fabric", "the simulated site's subnet: sim, or opensm for a real OpenSM on its simulator")
	flags.Var(newChoice(&o.nodes, "sim", "qemu"), "nodes", "the site's nodes: sim (a whole simulated site), or qemu for virtual bare metal with BMCs that really boots")
	flags.Var(newChoice(&o.accel, "tcg", "kvm"), "accel", "how QEMU runs them: tcg works everywhere, kvm is faster where it works")
	flags.IntVar(&o.machines, "machines", 1, "how many of them")
	flags.Var(newChoice(&o.speed, "real", "instant"), "speed", "how long the simulated nodes work: real (some seconds), or instant (no time at all)")
	flags.StringVar(&o.images, "images", "", "directory of images (see tools/image): leases of parts of a machine are then real containers on this one; as root")
}

func defaultDataDir() string {
	if dir := os.Getenv("LEASEHOLD_DATA"); dir != "" {
		return dir
	}
	base := os.Getenv("XDG_DATA_HOME")
	if base == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "leasehold-data"
		}
		base = filepath.Join(home, ".local", "share")
	}
	return filepath.Join(base, "leasehold")
}

func devCommand() *cobra.Command {
	o := devOptions{}
	command := &cobra.Command{
		Use:   "dev",
		Short: "Run everything on this machine: database, Temporal, API, worker, portal and a simulated site",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runDev(cmd.Context(), o, cmd.OutOrStdout())
		},
	}
	flags := command.Flags()
	o.bindDataDir(flags)
	o.bindSimulation(flags)
	flags.StringVar(&o.listen, "listen", "127.0.0.1:8080", "where API and portal listen; elsewhere than on the loopback interface by plain HTTP all the same")
	flags.IntVar(&o.temporalUI, "temporal-ui-port", 0, "port of Temporal's web interface (0: a free one)")
	flags.BoolVar(&o.noSite, "no-site", false, "without the simulated site")
	return command
}

func runDev(ctx context.Context, o devOptions, out io.Writer) error {
	instance, err := startDev(ctx, o, out)
	if err != nil {
		return err
	}
	defer instance.stop()
	instance.announce(out)
	select {
	case <-ctx.Done():
		fmt.Fprintln(out, "\nStopping.")
		return nil
	case err := <-instance.children.Failed():
		return err
	}
}

// instance is everything that runs.
type instance struct {
	children local.Children
	doors    doors
	logins   logins
	ui       string
	dataDir  string
}

// stopWithin bounds how long an orderly stop may take.
const stopWithin = 30 * time.Second

func (i *instance) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), stopWithin)
	defer cancel()
	if err := i.children.Stop(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "leasehold: stop:", err)
	}
}

func (i *instance) announce(out io.Writer) {
	where := i.logins.URL
	if public := i.doors.publicURL(); public != where {
		where += ", for others " + public
	}
	if warning := i.doors.warning(); warning != "" {
		fmt.Fprintf(out, "\n%s\n", warning)
	}
	fmt.Fprintf(out, `
Leasehold runs at   %s
  customer          %s   %s
  provider          %s   %s
  admin             %s   %s
  (kept in %s)
Temporal's pages    %s
Stop with Ctrl-C. Try: make demo
`, where, i.logins.Customer.Email, i.logins.Customer.Password, i.logins.Provider.Email, i.logins.Provider.Password,
		i.logins.Admin.Email, i.logins.Admin.Password, filepath.Join(i.dataDir, loginsFile), i.ui)
}

// startDev starts the parts in the order in which they need each other. On an error everything that was started is stopped.
func startDev(ctx context.Context, o devOptions, out io.Writer) (*instance, error) {
	i := &instance{dataDir: o.dataDir}
	if err := i.start(ctx, o, out); err != nil {
		i.stop()
		return nil, err
	}
	return i, nil
}

func (i *instance) start(ctx context.Context, o devOptions, out io.Writer) error {
	began := time.Now()
	say := func(what string) { fmt.Fprintf(out, "%7s  %s\n", time.Since(began).Round(100*time.Millisecond), what) }
	if err := os.MkdirAll(o.dataDir, 0o700); err != nil {
		return fmt.Errorf("make data directory: %w", err)
	}
	release, err := claimDataDir(o.dataDir, began)
	if err != nil {
		return err
	}
	i.children.Add("claim", func(context.Context) error {
		release()
		return nil
	})
	if i.doors, err = openDoors(ctx, o.listen); err != nil {
		return err
	}
	// Until the server owns them, whoever fails closes them; closing them twice does no harm.
	i.children.Add("listeners", func(context.Context) error {
		i.doors.close()
		return nil
	})
	config, err := i.startServices(ctx, o, say)
	if err != nil {
		return err
	}
	config.PublicURL = i.doors.publicURL()
	if o.nodes == "qemu" {
		if err := i.useRack(&config); err != nil {
			return err
		}
	}
	a, err := app.Open(ctx, config)
	if err != nil {
		return err
	}
	i.children.Add("application", func(context.Context) error { return a.Close() })
	if i.logins, err = seedDemo(ctx, o.dataDir, a, i.doors.url()); err != nil {
		return err
	}
	if err := i.serve(ctx, a); err != nil {
		return err
	}
	i.children.Go(ctx, "worker", a.Work)
	say("API, portal and worker run")
	if err := (claim{PID: os.Getpid(), URL: i.doors.url(), Since: began}).write(o.dataDir); err != nil {
		return err
	}
	if o.noSite {
		return nil
	}
	if o.nodes == "qemu" {
		return i.startRack(ctx, o, a, say)
	}
	if err := i.startSite(ctx, o, a, say); err != nil {
		return err
	}
	return nil
}

// startServices starts PostgreSQL and Temporal and brings the schema up to date.
func (i *instance) startServices(ctx context.Context, o devOptions, say func(string)) (app.Config, error) {
	database, err := postgres.Start(ctx, postgres.Options{DataDir: filepath.Join(o.dataDir, "postgres"), Progress: say})
	if err != nil {
		return app.Config{}, fmt.Errorf("start PostgreSQL: %w", err)
	}
	i.children.AddProcess(database.Process())
	if err := database.EnsureDatabase(ctx, "leasehold"); err != nil {
		return app.Config{}, fmt.Errorf("make database: %w", err)
	}
	url := database.URL("leasehold")
	if err := migrations.Up(ctx, url); err != nil {
		return app.Config{}, fmt.Errorf("migrate: %w", err)
	}
	say("PostgreSQL runs, the schema is up to date")
	server, err := temporal.Start(ctx, temporal.Options{
		DatabaseURL: database.URL("temporal"), Namespace: "leasehold", UIPort: o.temporalUI, DataDir: filepath.Join(o.dataDir, "temporal"), Progress: say,
	})
	if err != nil {
		return app.Config{}, err
	}
	if process := server.Process(); process != nil {
		i.children.AddProcess(process)
	}
	i.ui = server.UI()
	say("Temporal runs")
	config := app.ConfigFromEnv()
	config.DatabaseURL, config.TemporalAddress, config.TemporalNamespace = url, server.Address(), "leasehold"
	config.KeysDir, config.Portal = filepath.Join(o.dataDir, "keys"), frontend.Files()
	config.LogFile = filepath.Join(o.dataDir, "leasehold.log")
	config.WindowStep, config.Lab = time.Second, true
	return config, writeServices(o.dataDir, services{DatabaseURL: url, TemporalAddress: server.Address(), TemporalNamespace: "leasehold"})
}

// seedDemo makes organizations, people, site and prices on the first start, and keeps the passwords of the file on later ones.
func seedDemo(ctx context.Context, dir string, a *app.App, url string) (logins, error) {
	stored, err := storedLogins(dir)
	if err != nil {
		return logins{}, err
	}
	if stored.Customer.Password == "" {
		stored = logins{
			Customer: login{Email: "customer@example.com", Password: rand.Text()},
			Provider: login{Email: "provider@example.com", Password: rand.Text()},
			Admin:    login{Email: "admin@example.com", Password: rand.Text()},
		}
	}
	stored.URL = url
	people := app.DemoLogins{Customer: app.Login(stored.Customer), Provider: app.Login(stored.Provider), Admin: app.Login(stored.Admin)}
	if err := a.SeedDemo(ctx, people); err != nil {
		return logins{}, fmt.Errorf("make demo organizations: %w", err)
	}
	return stored, stored.write(dir)
}

func (i *instance) serve(ctx context.Context, a *app.App) error {
	server, err := a.Server(ctx)
	if err != nil {
		return err
	}
	i.children.Go(ctx, "API", func(ctx context.Context) error { return i.doors.serve(ctx, server) })
	return nil
}

// startSite starts the simulated site's agents as a child, with an enrolment token, and waits until its nodes are for rent.
func (i *instance) startSite(ctx context.Context, o devOptions, a *app.App, say func(string)) error {
	program, err := agentProgram()
	if err != nil {
		return err
	}
	token, err := a.EnrollmentToken(ctx, app.DemoSite)
	if err != nil {
		return fmt.Errorf("make enrolment token: %w", err)
	}
	state := filepath.Join(o.dataDir, "site")
	if err := os.MkdirAll(state, 0o700); err != nil {
		return fmt.Errorf("make the site's directory: %w", err)
	}
	tokenFile := filepath.Join(state, "token")
	if err := os.WriteFile(tokenFile, []byte(token), 0o600); err != nil {
		return fmt.Errorf("write enrolment token: %w", err)
	}
	args := []string{"sim", "--server", i.doors.agentsURL(), "--token-file", tokenFile, "--state-dir", state, "--fabric", o.fabric, "--speed", o.speed}
	if o.images != "" {
		args = append(args, "--images", o.images)
	}
	if cache, err := local.CacheDir(); err == nil {
		args = append(args, "--tool-dir", filepath.Join(cache, "debian")) // where set-up unpacks OpenSM for people who cannot install it
	}
	process, err := local.Start(ctx, local.Spec{Name: "simulated site", Path: program, LogFile: filepath.Join(o.dataDir, "site.log"), Args: args})
	if err != nil {
		return fmt.Errorf("start simulated site: %w", err)
	}
	i.children.AddProcess(process)
	standing, err := i.awaitSite(ctx, a)
	if err != nil {
		return err
	}
	say(siteLine(standing))
	return nil
}

// siteLine says how the site stands, for people.
func siteLine(s app.SiteStanding) string {
	line := "the simulated site runs: " + strconv.Itoa(s.ForRent) + " nodes are for rent"
	if len(s.OffSale) > 0 {
		line += "; " + strings.Join(s.OffSale, ", ")
	}
	if s.Awaited > 0 {
		line += fmt.Sprintf("; %d of %d are not there after %s (see site.log)", s.Awaited, s.Expected, siteWithin)
	}
	return line
}

// siteWithin bounds how long the site's agents are waited for; a real OpenSM needs some seconds more. What has not come by then may come
// later: everything else runs, so that is no reason to give up.
const siteWithin = 60 * time.Second

func (i *instance) awaitSite(ctx context.Context, a *app.App) (app.SiteStanding, error) {
	began := time.Now()
	return i.awaitSettled(ctx, siteWithin, 100*time.Millisecond, func() (app.SiteStanding, error) { return a.SiteStanding(ctx, app.DemoSite, began) })
}

// awaitSettled looks every so often until the machines have settled, the time is over, or a child has died, and returns how they stand then.
func (i *instance) awaitSettled(ctx context.Context, within, every time.Duration, look func() (app.SiteStanding, error)) (app.SiteStanding, error) {
	enough := time.NewTimer(within)
	defer enough.Stop()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		standing, err := look()
		if err != nil || standing.Settled() {
			return standing, err
		}
		select {
		case <-tick.C:
		case <-enough.C:
			return standing, nil
		case err := <-i.children.Failed():
			return standing, err
		case <-ctx.Done():
			return standing, ctx.Err()
		}
	}
}

// agentProgram is leasehold-agent beside this program, where `make build` puts it.
func agentProgram() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	program := filepath.Join(filepath.Dir(self), "leasehold-agent")
	if _, err := os.Stat(program); err != nil {
		return "", fmt.Errorf("the agent is not built: run `make build` (or use --no-site): %w", err)
	}
	return program, nil
}
