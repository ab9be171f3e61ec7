package catalog

import (
	"fmt"
	"strings"
)

// Model is a GPU model that can be sold. Its key begins a hardware key: eight of h100-sxm-80gb are h100-sxm-80gb.8.
type Model struct {
	Key         string
	Vendor      string
	Title       string
	names       []string // as drivers name it, in lower case
	MemoryBytes int64    // of the whole card, as sold
	// MIG is the placement table by profile; nil for a card without MIG. It is the authority: what NVML's own table says otherwise
	// of a card blocks the card's sale.
	MIG map[string]MIGPlacement
}

// MIGPlacement says how many memory slices a profile takes and at which slices of the GPU it may begin. Slices are the slots of
// a bay.
type MIGPlacement struct {
	Slots  int
	Starts []int
}

// gib is what vendors call a gigabyte of GPU memory.
const gib = 1 << 30

// migTable lays the profiles of one card out. The geometry is the same on every card with eight memory slices; only the names
// carry the card's memory. Media-extension profiles (+me) are not sold.
func migTable(one, oneDouble, two, three, four, seven string) map[string]MIGPlacement {
	return map[string]MIGPlacement{
		one:       {Slots: 1, Starts: []int{0, 1, 2, 3, 4, 5, 6}},
		oneDouble: {Slots: 2, Starts: []int{0, 2, 4, 6}},
		two:       {Slots: 2, Starts: []int{0, 2, 4}},
		three:     {Slots: 4, Starts: []int{0, 4}},
		four:      {Slots: 4, Starts: []int{0}},
		seven:     {Slots: 8, Starts: []int{0}},
	}
}

// Models lists every GPU model that can be recognised and sold.
func Models() []Model {
	return []Model{
		{
			Key: "h100-sxm-80gb", Vendor: "nvidia", Title: "NVIDIA H100 SXM 80 GB", names: []string{"nvidia h100 80gb hbm3"}, MemoryBytes: 80 * gib,
			MIG: migTable("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"),
		},
		{
			Key: "h200-sxm-141gb", Vendor: "nvidia", Title: "NVIDIA H200 SXM 141 GB", names: []string{"nvidia h200"}, MemoryBytes: 141 * gib,
			MIG: migTable("1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"),
		},
		{
			Key: "b200-sxm-180gb", Vendor: "nvidia", Title: "NVIDIA B200 180 GB", names: []string{"nvidia b200"}, MemoryBytes: 180 * gib,
			MIG: migTable("1g.23gb", "1g.45gb", "2g.45gb", "3g.90gb", "4g.90gb", "7g.180gb"),
		},
		{
			Key: "a100-sxm-80gb", Vendor: "nvidia", Title: "NVIDIA A100 SXM 80 GB", names: []string{"nvidia a100-sxm4-80gb"}, MemoryBytes: 80 * gib,
			MIG: migTable("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"),
		},
		{
			Key: "a100-sxm-40gb", Vendor: "nvidia", Title: "NVIDIA A100 SXM 40 GB", names: []string{"nvidia a100-sxm4-40gb"}, MemoryBytes: 40 * gib,
			MIG: migTable("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"),
		},
		{Key: "rtx4090-24gb", Vendor: "nvidia", Title: "NVIDIA GeForce RTX 4090", names: []string{"nvidia geforce rtx 4090"}, MemoryBytes: 24 * gib},
		{Key: "mi250x-128gb", Vendor: "amd", Title: "AMD Instinct MI250X", names: []string{"amd instinct mi250x", "instinct mi250x"}, MemoryBytes: 128 * gib},
	}
}

// RecogniseModel finds the model by the name that the driver gives it. The memory decides between cards of one name, and must
// be within a tenth of the model's, since drivers report what is usable.
func RecogniseModel(vendor, name string, memoryBytes int64) (Model, bool) {
	name = strings.Join(strings.Fields(strings.ToLower(name)), " ")
	for _, m := range Models() {
		for _, known := range m.names {
			if m.Vendor == vendor && known == name && memoryBytes > m.MemoryBytes/10*9 && memoryBytes < m.MemoryBytes/10*11 {
				return m, true
			}
		}
	}
	return Model{}, false
}

// HardwareKey names a machine by its GPUs, e.g. h100-sxm-80gb.8.
func HardwareKey(m Model, gpus int) string { return fmt.Sprintf("%s.%d", m.Key, gpus) }

// ModelOf returns the GPU model of a hardware key.
func ModelOf(hardware string) (Model, bool) {
	cut := strings.LastIndexByte(hardware, '.')
	if cut < 0 {
		return Model{}, false
	}
	for _, m := range Models() {
		if m.Key == hardware[:cut] {
			return m, true
		}
	}
	return Model{}, false
}
