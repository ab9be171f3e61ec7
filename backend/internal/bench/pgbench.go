package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// replay is scripts that run side by side against one database, each as often as its weight says.
type replay struct {
	url     string
	scripts []script
	clients int
	perEach int // transactions of each client
	done    int // how many each client has done before
}

// script is what one client sends, again and again.
type script struct {
	name       string
	g          string // the run's ordinal, from :i and :client_id, in pgbench's arithmetic
	statements []statement
	weight     int
}

// findPgbench takes what it is told ("-": none), else looks on PATH, then where Debian puts it.
func findPgbench() (string, bool) {
	if told := os.Getenv("LEASEHOLD_PGBENCH"); told != "" {
		return strings.TrimPrefix(told, "-"), told != "-"
	}
	if path, err := exec.LookPath("pgbench"); err == nil {
		return path, true
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/pgbench")
	if err != nil || len(found) == 0 {
		return "", false
	}
	slices.Sort(found)
	return found[len(found)-1], true
}

// text is the script in pgbench's language. The client's own ids are read once.
func (s script) text(counter string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\\if :ready = 0\nSELECT * FROM bench_client WHERE client = :client_id \\gset\n\\set ready 1\n\\endif\n")
	fmt.Fprintf(&b, "\\set %s :%s + 1\n\\set g %s\n", counter, counter, strings.ReplaceAll(s.g, ":i", ":"+counter))
	batch := 0
	for _, one := range s.statements {
		if one.batch != batch && batch != 0 {
			b.WriteString("\\endpipeline\n")
		}
		if one.batch != batch && one.batch != 0 {
			b.WriteString("\\startpipeline\n")
		}
		batch = one.batch
		b.WriteString(strings.TrimRight(one.sql, "; \n") + ";\n")
	}
	if batch != 0 {
		b.WriteString("\\endpipeline\n")
	}
	return b.String()
}

// run returns how many transactions were done in what time.
func (r replay) run(ctx context.Context, pgbench, dir string) (int, time.Duration, error) {
	if pgbench == "" {
		return r.loop(ctx)
	}
	args := []string{
		"--no-vacuum", "--protocol=prepared", "--client=" + strconv.Itoa(r.clients), "--jobs=2", "--transactions=" + strconv.Itoa(r.perEach), "-D", "ready=0",
	}
	for i, s := range r.scripts {
		counter, file := fmt.Sprintf("i%d", i), filepath.Join(dir, s.name+".sql")
		if err := os.WriteFile(file, []byte(s.text(counter)), 0o600); err != nil {
			return 0, 0, fmt.Errorf("write script: %w", err)
		}
		args = append(args, "-D", fmt.Sprintf("%s=%d", counter, r.done-1), "-f", file+"@"+strconv.Itoa(s.weight))
	}
	command := exec.CommandContext(ctx, pgbench, append(args, r.url)...) //nolint:gosec // a program of the operating system
	out, err := command.CombinedOutput()
	if err != nil {
		return 0, 0, fmt.Errorf("pgbench: %w: %.2000s", err, out)
	}
	return parsePgbench(string(out))
}

var (
	processed = regexp.MustCompile(`number of transactions actually processed: (\d+)`)    //nolint:gochecknoglobals // a constant
	perSecond = regexp.MustCompile(`tps = ([0-9.]+) \(without initial connection time\)`) //nolint:gochecknoglobals // a constant
	failures  = regexp.MustCompile(`number of failed transactions: (\d+)`)                //nolint:gochecknoglobals // a constant
)

func parsePgbench(out string) (int, time.Duration, error) {
	count, rate := processed.FindStringSubmatch(out), perSecond.FindStringSubmatch(out)
	if count == nil || rate == nil {
		return 0, 0, fmt.Errorf("pgbench said %.2000s", out)
	}
	if failed := failures.FindStringSubmatch(out); failed != nil && failed[1] != "0" {
		return 0, 0, fmt.Errorf("pgbench had failures: %.2000s", out)
	}
	n, err := strconv.Atoi(count[1])
	tps, err2 := strconv.ParseFloat(rate[1], 64)
	if err := errors.Join(err, err2); err != nil || tps == 0 {
		return 0, 0, fmt.Errorf("pgbench said %.2000s", out)
	}
	return n, time.Duration(float64(n) / tps * float64(time.Second)), nil
}

// loop does the same from this process where there is no pgbench.
func (r replay) loop(ctx context.Context) (int, time.Duration, error) {
	var group sync.WaitGroup
	failed := make([]error, r.clients)
	began := time.Now()
	for client := range r.clients {
		group.Go(func() { failed[client] = r.client(ctx, client) })
	}
	group.Wait()
	return r.clients * r.perEach, time.Since(began), errors.Join(failed...)
}

func (r replay) client(ctx context.Context, client int) error {
	conn, err := pgx.Connect(ctx, r.url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // its commits have been answered
	own, err := clientVariables(ctx, conn, client)
	if err != nil {
		return err
	}
	var turns []int // the scripts in turn, by weight
	for i, s := range r.scripts {
		turns = append(turns, slices.Repeat([]int{i}, s.weight)...)
	}
	counts := make([]int, len(r.scripts))
	for n := range r.perEach {
		at := turns[(n+client)%len(turns)]
		g, err := ordinalOf(r.scripts[at].g, r.done+counts[at], client)
		if err != nil {
			return err
		}
		counts[at]++
		own["g"] = strconv.Itoa(g)
		if err := r.scripts[at].send(ctx, conn, own); err != nil {
			return err
		}
	}
	return nil
}

// ordinalOf computes "a * :i + b * :client_id".
func ordinalOf(expression string, i, client int) (int, error) {
	sum := 0
	for term := range strings.SplitSeq(expression, "+") {
		product := 1
		for factor := range strings.SplitSeq(term, "*") {
			switch factor = strings.TrimSpace(factor); factor {
			case ":i":
				product *= i
			case ":client_id":
				product *= client
			default:
				n, err := strconv.Atoi(factor)
				if err != nil {
					return 0, fmt.Errorf("ordinal %s: %w", expression, err)
				}
				product *= n
			}
		}
		sum += product
	}
	return sum, nil
}

func clientVariables(ctx context.Context, conn *pgx.Conn, client int) (map[string]string, error) {
	rows, err := conn.Query(ctx, "SELECT * FROM bench_client WHERE client = $1", client)
	if err != nil {
		return nil, err
	}
	row, err := pgx.CollectExactlyOneRow(rows, pgx.RowToMap)
	own := map[string]string{}
	for name, v := range row {
		own[name] = fmt.Sprint(v)
	}
	return own, err
}

var variable = regexp.MustCompile(`(^|[^:]):([a-z][a-z0-9_]*)`) //nolint:gochecknoglobals // a constant

// send does what pgbench does with its variables: they become parameters of prepared statements.
func (s script) send(ctx context.Context, conn *pgx.Conn, own map[string]string) error {
	for i := 0; i < len(s.statements); {
		batch := &pgx.Batch{}
		for first := s.statements[i].batch; i < len(s.statements) && s.statements[i].batch == first; i++ {
			var args []any
			sql := variable.ReplaceAllStringFunc(s.statements[i].sql, func(found string) string {
				before, name, _ := strings.Cut(found, ":")
				args = append(args, own[name])
				return before + "$" + strconv.Itoa(len(args))
			})
			batch.Queue(sql, args...)
			if first == 0 {
				i++
				break
			}
		}
		if err := conn.SendBatch(ctx, batch).Close(); err != nil {
			return err
		}
	}
	return nil
}
