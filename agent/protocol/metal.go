package protocol

// Image is a disk image for a machine that is leased whole: where it is, and how it is known to be the right one.
type Image struct {
	URL       string `json:"url"`
	Format    string `json:"format"`     // raw, qcow2
	SHA256    string `json:"sha256"`     // of the file, in hex
	SizeBytes int64  `json:"size_bytes"` // of the file
}

// Seed is what a tenant's own system is told about itself at its first boot, through cloud-init's NoCloud source.
type Seed struct {
	InstanceID string `json:"instance_id"`
	Hostname   string `json:"hostname"`
	UserData   string `json:"user_data,omitempty"` // the tenant's own, unchanged
	PhoneHome  string `json:"phone_home"`          // where it tells that it runs, with its host keys
}
