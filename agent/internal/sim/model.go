package sim

// model is a GPU with the machine that it comes in.
type model struct {
	key, vendor, name string
	memoryBytes       int64
	mig               bool
	vbios, driver     string
	machine
}

// machine is what surrounds the GPUs.
type machine struct {
	manufacturer, product, cpu string
	cores                      int
	memoryBytes                int64
	disks                      int
	nvlink                     bool
}

const (
	mib = 1 << 20
	gib = 1 << 30
	tib = 1 << 40
)

// models lists what can be simulated, with figures as the vendors' tools show them.
func models() []model {
	return []model{
		{
			"h100-sxm-80gb", "nvidia", "NVIDIA H100 80GB HBM3", 81559 * mib, true, "96.00.99.00.01", "580.105.08",
			machine{"Supermicro", "SYS-821GE-TNHR", "Intel(R) Xeon(R) Platinum 8480C", 112, 2 * tib, 8, true},
		},
		{
			"h200-sxm-141gb", "nvidia", "NVIDIA H200", 143771 * mib, true, "96.00.BC.00.01", "580.105.08",
			machine{"Supermicro", "SYS-821GE-TNHR", "Intel(R) Xeon(R) Platinum 8480C", 112, 2 * tib, 8, true},
		},
		{
			"a100-sxm-80gb", "nvidia", "NVIDIA A100-SXM4-80GB", 81920 * mib, true, "92.00.45.00.05", "580.105.08",
			machine{"Supermicro", "AS-4124GO-NART", "AMD EPYC 7763", 128, 1 * tib, 4, true},
		},
		{
			"rtx4090-24gb", "nvidia", "NVIDIA GeForce RTX 4090", 24564 * mib, false, "95.02.3C.00.8C", "580.105.08",
			machine{"ASUS", "ESC4000-E11", "AMD EPYC 7443P", 24, 256 * gib, 2, false},
		},
		{
			"mi250x-128gb", "amd", "AMD Instinct MI250X", 128 * gib, false, "113-D65201-046", "6.12.12",
			machine{"HPE", "Cray EX235a", "AMD EPYC 7A53", 64, 512 * gib, 2, false},
		},
	}
}

func modelOf(key string) (model, bool) {
	for _, m := range models() {
		if m.key == key {
			return m, true
		}
	}
	return model{}, false
}

func modelKeys() []string {
	var keys []string
	for _, m := range models() {
		keys = append(keys, m.key)
	}
	return keys
}
