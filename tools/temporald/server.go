package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	uiserver "github.com/temporalio/ui-server/v2/server"
	uiconfig "github.com/temporalio/ui-server/v2/server/config"
	uioptions "github.com/temporalio/ui-server/v2/server/server_options"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/server/common/authorization"
	"go.temporal.io/server/common/cluster"
	"go.temporal.io/server/common/config"
	"go.temporal.io/server/common/dynamicconfig"
	"go.temporal.io/server/common/log"
	"go.temporal.io/server/common/membership/static"
	"go.temporal.io/server/common/metrics"
	"go.temporal.io/server/common/primitives"
	"go.temporal.io/server/temporal"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

const (
	clusterName      = "active"
	namespaceTimeout = 30 * time.Second
	namespaceRetry   = 100 * time.Millisecond
)

// newServer configures the four services in this process, with static membership in place of gossip: there is one of each.
func newServer(ctx context.Context, opts options, both databases, logger log.Logger) (temporal.Server, error) {
	cfg, err := configuration(ctx, opts, both)
	if err != nil {
		return nil, err
	}
	authorizer, err := authorization.GetAuthorizerFromConfig(&cfg.Global.Authorization)
	if err != nil {
		return nil, fmt.Errorf("configure authorization: %w", err)
	}
	claims, err := authorization.GetClaimMapperFromConfig(&cfg.Global.Authorization, logger)
	if err != nil {
		return nil, fmt.Errorf("configure authorization: %w", err)
	}
	hosts := map[primitives.ServiceName]static.Hosts{}
	for name, service := range cfg.Services {
		hosts[primitives.ServiceName(name)] = static.SingleLocalHost(loopback(service.RPC.GRPCPort))
	}
	server, err := temporal.NewServer(
		temporal.WithConfig(cfg), temporal.ForServices(temporal.DefaultServices), temporal.WithLogger(logger),
		temporal.WithStaticHosts(hosts), temporal.WithAuthorizer(authorizer),
		temporal.WithClaimMapper(func(*config.Config) authorization.ClaimMapper { return claims }),
		temporal.WithDynamicConfigClient(dynamicconfig.StaticClient{
			dynamicconfig.FrontendMaxNamespaceVisibilityRPSPerInstance.Key(): 100,
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("configure server: %w", err)
	}
	return server, nil
}

func configuration(ctx context.Context, opts options, both databases) (*config.Config, error) {
	cfg := &config.Config{}
	cfg.Global.Membership.MaxJoinDuration = 30 * time.Second
	cfg.Global.Membership.BroadcastAddress = "127.0.0.1"
	if opts.metricsPort != 0 {
		cfg.Global.Metrics = &metrics.Config{Prometheus: &metrics.PrometheusConfig{
			ListenAddress: opts.address(opts.metricsPort), HandlerPath: "/metrics",
		}}
	}
	cfg.ClusterMetadata = &cluster.Config{
		FailoverVersionIncrement: 10, MasterClusterName: clusterName, CurrentClusterName: clusterName,
		ClusterInformation: map[string]cluster.ClusterInformation{
			clusterName: {Enabled: true, InitialFailoverVersion: 1, RPCAddress: loopback(opts.port)},
		},
	}
	cfg.DCRedirectionPolicy.Policy = "noop"
	for _, state := range []*string{
		&cfg.Archival.History.State, &cfg.Archival.Visibility.State,
		&cfg.NamespaceDefaults.Archival.History.State, &cfg.NamespaceDefaults.Archival.Visibility.State,
	} {
		*state = "disabled"
	}
	cfg.PublicClient.HostPort = loopback(opts.port)
	cfg.Persistence = config.Persistence{
		DefaultStore: "default", VisibilityStore: "visibility", NumHistoryShards: int32(opts.shards),
		DataStores: map[string]config.DataStore{"default": {SQL: &both.main}, "visibility": {SQL: &both.visibility}},
	}
	cfg.Services = map[string]config.Service{
		string(primitives.FrontendService): {RPC: config.RPC{GRPCPort: opts.port, BindOnIP: opts.listen}},
	}
	for _, name := range []primitives.ServiceName{primitives.HistoryService, primitives.MatchingService, primitives.WorkerService} {
		port, err := freePort(ctx)
		if err != nil {
			return nil, err
		}
		cfg.Services[string(name)] = config.Service{RPC: config.RPC{GRPCPort: port, BindOnIP: "127.0.0.1"}}
	}
	return cfg, nil
}

func freePort(ctx context.Context) (int, error) {
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	address, ok := listener.Addr().(*net.TCPAddr)
	if !ok {
		return 0, errors.Join(errors.New("find a free port: not TCP"), listener.Close())
	}
	return address.Port, listener.Close()
}

// startUI serves the web interface if one is wanted, and returns what ends it.
func startUI(opts options) func() {
	if opts.uiPort == 0 {
		return func() {}
	}
	ui := uiserver.NewServer(uioptions.WithConfigProvider(&uiconfig.Config{
		Host: opts.listen, Port: opts.uiPort, TemporalGRPCAddress: loopback(opts.port), EnableUI: true, HideLogs: true,
		CORS: uiconfig.CORS{CookieInsecure: true},
	}))
	go func() {
		if err := ui.Start(); err != nil {
			fmt.Fprintln(os.Stderr, "temporald: web interface:", err)
		}
	}()
	return ui.Stop
}

// ensureNamespace makes the namespace. The frontend refuses for a moment after its start, so it is asked again.
func ensureNamespace(ctx context.Context, address, name string, retention time.Duration) error {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("make namespace %s: %w", name, err)
	}
	defer func() { _ = conn.Close() }()
	frontend := workflowservice.NewWorkflowServiceClient(conn)
	ctx, cancel := context.WithTimeout(ctx, namespaceTimeout)
	defer cancel()
	again := time.NewTicker(namespaceRetry)
	defer again.Stop()
	for {
		_, err := frontend.RegisterNamespace(ctx, &workflowservice.RegisterNamespaceRequest{
			Namespace: name, WorkflowExecutionRetentionPeriod: durationpb.New(retention),
		})
		if err == nil || exists(err) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("make namespace %s: %w", name, err)
		case <-again.C:
		}
	}
}

func exists(err error) bool {
	var already *serviceerror.NamespaceAlreadyExists
	return errors.As(serviceerror.FromStatus(status.Convert(err)), &already)
}
