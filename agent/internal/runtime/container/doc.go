// Package container holds tenants of parts of a machine. Each lease's place on it is one OCI container: exactly its GPUs, adapters, cores,
// memory, processes and disk, a network of its own, users that are nobody on the host, and system calls that cannot ask for more. When the
// lease ends all of it is gone, and looked for.
//
// The containers are run by runc or crun; why by these and not by an engine above them is in docs/adr/0006.
package container
