package ids

// The kinds of thing that have identifiers, with the prefix that people see. A new noun adds three lines here.
//
//nolint:revive // one comment speaks for the group
type (
	orgKind         struct{}
	projectKind     struct{}
	userKind        struct{}
	sessionKind     struct{}
	apiKeyKind      struct{}
	sshKeyKind      struct{}
	siteKind        struct{}
	fabricKind      struct{}
	switchKind      struct{}
	linkKind        struct{}
	nodeKind        struct{}
	gpuKind         struct{}
	hcaPortKind     struct{}
	instanceKind    struct{}
	priceKind       struct{}
	quoteKind       struct{}
	LeaseKind       struct{}
	leaseEventKind  struct{}
	allocationKind  struct{}
	partitionKind   struct{}
	driftKind       struct{}
	attestationKind struct{}
	wipeKind        struct{}
	agentKind       struct{}
	enrollmentKind  struct{}
	operationKind   struct{}
	stepKind        struct{}
	usageKind       struct{}
	chargeKind      struct{}
	ratingKind      struct{}
	ledgerTxKind    struct{}
	entryKind       struct{}
	holdKind        struct{}
	invoiceKind     struct{}
	paymentKind     struct{}
	auditKind       struct{}
	outboxKind      struct{}
	inviteKind      struct{}
	groupKind       struct{}
	serviceKind     struct{}
	deviceKind      struct{}
	hookKind        struct{}
	hookEventKind   struct{}
	deliveryKind    struct{}
)

func (orgKind) prefix() string         { return "org" }
func (projectKind) prefix() string     { return "proj" }
func (userKind) prefix() string        { return "user" }
func (sessionKind) prefix() string     { return "sess" }
func (apiKeyKind) prefix() string      { return "key" }
func (sshKeyKind) prefix() string      { return "sshkey" }
func (siteKind) prefix() string        { return "site" }
func (fabricKind) prefix() string      { return "fabric" }
func (switchKind) prefix() string      { return "switch" }
func (linkKind) prefix() string        { return "link" }
func (nodeKind) prefix() string        { return "node" }
func (gpuKind) prefix() string         { return "gpu" }
func (hcaPortKind) prefix() string     { return "port" }
func (instanceKind) prefix() string    { return "itype" }
func (priceKind) prefix() string       { return "price" }
func (quoteKind) prefix() string       { return "quote" }
func (LeaseKind) prefix() string       { return "lease" }
func (leaseEventKind) prefix() string  { return "event" }
func (allocationKind) prefix() string  { return "alloc" }
func (partitionKind) prefix() string   { return "part" }
func (driftKind) prefix() string       { return "drift" }
func (attestationKind) prefix() string { return "att" }
func (wipeKind) prefix() string        { return "wipe" }
func (agentKind) prefix() string       { return "agent" }
func (enrollmentKind) prefix() string  { return "enroll" }
func (operationKind) prefix() string   { return "op" }
func (stepKind) prefix() string        { return "step" }
func (usageKind) prefix() string       { return "usage" }
func (chargeKind) prefix() string      { return "charge" }
func (ratingKind) prefix() string      { return "rating" }
func (ledgerTxKind) prefix() string    { return "txn" }
func (entryKind) prefix() string       { return "entry" }
func (holdKind) prefix() string        { return "hold" }
func (invoiceKind) prefix() string     { return "inv" }
func (paymentKind) prefix() string     { return "pay" }
func (auditKind) prefix() string       { return "audit" }
func (outboxKind) prefix() string      { return "msg" }
func (inviteKind) prefix() string      { return "invite" }
func (groupKind) prefix() string       { return "group" }
func (serviceKind) prefix() string     { return "sa" }
func (deviceKind) prefix() string      { return "device" }
func (hookKind) prefix() string        { return "hook" }
func (hookEventKind) prefix() string   { return "evt" }
func (deliveryKind) prefix() string    { return "dlv" }

// One alias a kind, so that a signature says what it wants and the compiler refuses a node's id where a lease's is due.
//
//nolint:revive // one comment speaks for the group
type (
	Org         = ID[orgKind]
	Project     = ID[projectKind]
	User        = ID[userKind]
	Session     = ID[sessionKind]
	APIKey      = ID[apiKeyKind]
	SSHKey      = ID[sshKeyKind]
	Site        = ID[siteKind]
	Fabric      = ID[fabricKind]
	Switch      = ID[switchKind]
	Link        = ID[linkKind]
	Node        = ID[nodeKind]
	GPU         = ID[gpuKind]
	HCAPort     = ID[hcaPortKind]
	Instance    = ID[instanceKind]
	Price       = ID[priceKind]
	Quote       = ID[quoteKind]
	Lease       = ID[LeaseKind]
	LeaseEvent  = ID[leaseEventKind]
	Allocation  = ID[allocationKind]
	Partition   = ID[partitionKind]
	Drift       = ID[driftKind]
	Attestation = ID[attestationKind]
	Wipe        = ID[wipeKind]
	Agent       = ID[agentKind]
	Enrollment  = ID[enrollmentKind]
	Operation   = ID[operationKind]
	Step        = ID[stepKind]
	Usage       = ID[usageKind]
	Charge      = ID[chargeKind]
	Rating      = ID[ratingKind]
	LedgerTx    = ID[ledgerTxKind]
	Entry       = ID[entryKind]
	Hold        = ID[holdKind]
	Invoice     = ID[invoiceKind]
	Payment     = ID[paymentKind]
	Audit       = ID[auditKind]
	Outbox      = ID[outboxKind]
	Invitation  = ID[inviteKind]
	Group       = ID[groupKind]
	Service     = ID[serviceKind]
	Device      = ID[deviceKind]
	Webhook     = ID[hookKind]
	Event       = ID[hookEventKind]
	Delivery    = ID[deliveryKind]
)

// Make returns a fresh id of the type that the caller names: ids.Make[ids.Lease]() reads better than the kind.
func Make[T interface{ ~struct{ uuid [16]byte } }]() T {
	return T(struct{ uuid [16]byte }{newUUIDv7()})
}

// Read parses s as the id type that the caller names: ids.Read[ids.Lease](s).
func Read[T any, P interface {
	*T
	UnmarshalText(b []byte) error
}](s string) (T, error) {
	var id T
	err := P(&id).UnmarshalText([]byte(s))
	return id, err
}
