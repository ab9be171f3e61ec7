package fabric

// Items of posture. Each is true when the fabric is hardened in that respect; anything but true blocks new tenants.
const (
	PostureDefaultLimited    = "default_membership_limited" // hosts are limited members of the default partition
	PostureMKeySet           = "m_key_set"                  // ports refuse management by strangers
	PostureMKeyPerPort       = "m_key_per_port"             // a host that reads its own M_Key has nobody else's
	PostureSMKeySet          = "sm_key_set"                 // a foreign subnet manager cannot take over
	PostureSAKeySet          = "sa_key_set"                 // a host cannot make trusted queries
	PostureSwitchEnforcement = "switch_enforcement"         // switches check partitions at the ports that face hosts
	PostureGuestsDeniedSM    = "guests_denied_sm"           // hosts cannot run a subnet manager
	PostureStandbyInStep     = "standby_in_step"            // a subnet manager that takes over has the same partitions
)

// PostureItems lists the items that every driver reports.
func PostureItems() []string {
	return []string{
		PostureDefaultLimited, PostureMKeySet, PostureMKeyPerPort, PostureSMKeySet, PostureSAKeySet, PostureSwitchEnforcement,
		PostureGuestsDeniedSM, PostureStandbyInStep,
	}
}
