package main

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
)

// A statement as the server sent it. Those with the same batch number above zero went out together.
type statement struct {
	sql   string
	args  []any
	batch int
}

// recorder counts every statement, and keeps those between start and stop. It is safe for many at once.
type recorder struct {
	count atomic.Int64 // statements since the beginning
	trips atomic.Int64 // round trips: a batch is one

	mu        sync.Mutex
	recording bool
	batches   int
	kept      []statement
}

var (
	_ pgx.QueryTracer = (*recorder)(nil)
	_ pgx.BatchTracer = (*recorder)(nil)
)

func (r *recorder) start() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.recording, r.kept, r.batches = true, nil, 0
}

func (r *recorder) stop() []statement {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.recording = false
	return r.kept
}

// TraceQueryStart implements pgx.QueryTracer.
func (r *recorder) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	r.count.Add(1)
	r.trips.Add(1)
	r.keep(statement{sql: data.SQL, args: withoutOptions(data.Args)})
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (r *recorder) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchStart implements pgx.BatchTracer.
func (r *recorder) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	r.count.Add(int64(data.Batch.Len()))
	r.trips.Add(1)
	all := make([]statement, data.Batch.Len())
	for i, q := range data.Batch.QueuedQueries {
		all[i] = statement{sql: q.SQL, args: withoutOptions(q.Arguments)}
	}
	r.mu.Lock()
	r.batches++
	for i := range all {
		all[i].batch = r.batches
	}
	r.mu.Unlock()
	r.keep(all...)
	return ctx
}

// TraceBatchQuery implements pgx.BatchTracer.
func (r *recorder) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd implements pgx.BatchTracer.
func (r *recorder) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

func (r *recorder) keep(all ...statement) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.recording {
		r.kept = append(r.kept, all...)
	}
}

// withoutOptions drops what pgx takes before a statement's arguments.
func withoutOptions(args []any) []any {
	for len(args) > 0 {
		switch args[0].(type) {
		case pgx.QueryExecMode, pgx.QueryResultFormats, pgx.QueryResultFormatsByOID:
			args = args[1:]
		default:
			return args
		}
	}
	return nil
}
