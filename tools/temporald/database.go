package main

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"go.temporal.io/server/common/config"
	"go.temporal.io/server/common/log"
	_ "go.temporal.io/server/common/persistence/sql/sqlplugin/postgresql" // registers the plugin named below.
	"go.temporal.io/server/tools/common/schema"
	sqltool "go.temporal.io/server/tools/sql"
)

const (
	plugin            = "postgres12_pgx"
	mainSchema        = "postgresql/v12/temporal"
	visibilitySchema  = "postgresql/v12/visibility"
	mainConnections   = 20
	searchConnections = 10
)

// databases are the two that Temporal keeps: what workflows did, and what can be searched.
type databases struct{ main, visibility config.SQL }

func parseDatabases(address string) (databases, error) {
	parsed, err := url.Parse(address)
	if err != nil {
		return databases{}, errors.New(databaseVariable + " is not an address") // the cause would repeat the password.
	}
	name := strings.TrimPrefix(parsed.Path, "/")
	if name == "" || parsed.Host == "" || parsed.User == nil {
		return databases{}, errors.New(databaseVariable + " must be postgres://user:password@host:port/name")
	}
	password, _ := parsed.User.Password()
	database := func(name string, connections int) config.SQL {
		return config.SQL{
			PluginName: plugin, DatabaseName: name, ConnectAddr: parsed.Host, ConnectProtocol: "tcp",
			User: parsed.User.Username(), Password: password,
			MaxConns: connections, MaxIdleConns: connections, MaxConnLifetime: time.Hour,
		}
	}
	return databases{
		main:       database(name, mainConnections),
		visibility: database(name+"_visibility", searchConnections),
	}, nil
}

// prepareSchemas makes what is missing and updates what is old. It changes nothing the second time.
func prepareSchemas(both databases, logger log.Logger) error {
	if err := prepareSchema(both.main, mainSchema, logger); err != nil {
		return err
	}
	return prepareSchema(both.visibility, visibilitySchema, logger)
}

func prepareSchema(database config.SQL, name string, logger log.Logger) error {
	admin := database // CreateDatabase writes to it.
	if err := sqltool.DoCreateDatabase(&admin, "postgres", logger); err != nil {
		return fmt.Errorf("create database %s: %w", database.DatabaseName, err)
	}
	conn, err := sqltool.NewConnection(&database, logger)
	if err != nil {
		return fmt.Errorf("connect to database %s: %w", database.DatabaseName, err)
	}
	defer conn.Close()
	if _, err := conn.ReadSchemaVersion(); err != nil { // no version table: an empty database.
		setup := schema.NewSetupSchemaTask(conn, &schema.SetupConfig{InitialVersion: "0.0"}, logger)
		if err := setup.Run(); err != nil {
			return fmt.Errorf("set up schema of %s: %w", database.DatabaseName, err)
		}
	}
	update := schema.NewUpdateSchemaTask(conn, &schema.UpdateConfig{SchemaName: name}, logger)
	if err := update.Run(); err != nil {
		return fmt.Errorf("update schema of %s: %w", database.DatabaseName, err)
	}
	return nil
}
