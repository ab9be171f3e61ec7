// Package leasetest runs the lease's process on a real Temporal server and a real PostgreSQL: the workflows, the relay, the
// reconciler and the delivery service are the product's own, only the machines answer from memory.
//
// With -record it also writes the histories that the replay gate in package workflows/leasing replays.
package leasetest
