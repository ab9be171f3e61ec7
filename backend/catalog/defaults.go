package catalog

import (
	"time"

	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/money"
)

// Listing is an instance type with the price that it has where it is offered.
type Listing struct {
	Type  InstanceType
	Price PriceVersion // without site and validity, which the offer gives it
}

// Pace is how long preparing and cleaning take and how short a lease may be; a simulated site's differ from a real one's.
type Pace struct {
	Lead, Turnaround time.Duration
	MinDuration      time.Duration
}

// RealPace is for real machines until their history says better: imaging and firmware checks before, a full wipe after.
func RealPace() Pace {
	return Pace{Lead: 20 * time.Minute, Turnaround: 40 * time.Minute, MinDuration: time.Hour}
}

// SimulatedPace is for simulated machines, whose work takes seconds.
func SimulatedPace() Pace {
	return Pace{Lead: 6 * time.Second, Turnaround: 15 * time.Second, MinDuration: 10 * time.Second}
}

// sale is one line of the default catalogue.
type sale struct {
	name, title, hardware string
	mode                  Mode
	gpus                  int
	mig                   string
	hca                   bool
	micros                int64 // USD per rated unit and hour
}

// Defaults is the catalogue that a new installation starts with. Rates are US dollars, in the range that these machines cost on
// open markets in 2026.
func Defaults(pace Pace, now time.Time) []Listing {
	sales := []sale{
		{"h100-sxm.8x.ndr", "8 × H100 SXM 80 GB, 8 × NDR 400G, whole node", "h100-sxm-80gb.8", BareMetal, 8, "", true, 2_490_000},
		{"h100-sxm.4x.ndr", "4 × H100 SXM 80 GB, 4 × NDR 400G", "h100-sxm-80gb.8", Shared, 4, "", true, 10_360_000},
		{"h100-sxm.2x.ndr", "2 × H100 SXM 80 GB, 2 × NDR 400G", "h100-sxm-80gb.8", Shared, 2, "", true, 5_280_000},
		{"h100-sxm.1x.ndr", "1 × H100 SXM 80 GB, 1 × NDR 400G", "h100-sxm-80gb.8", Shared, 1, "", true, 2_690_000},
		{"h100-sxm.mig-3g.40gb", "H100 slice with 40 GB", "h100-sxm-80gb.8", Shared, 0, "3g.40gb", false, 1_290_000},
		{"a100-sxm.8x", "8 × A100 SXM 80 GB", "a100-sxm-80gb.8", Shared, 8, "", false, 1_390_000},
		{"a100-sxm.1x", "1 × A100 SXM 80 GB", "a100-sxm-80gb.8", Shared, 1, "", false, 1_490_000},
		{"a100-sxm.mig-3g.40gb", "A100 slice with 40 GB", "a100-sxm-80gb.8", Shared, 0, "3g.40gb", false, 720_000},
		{"a100-sxm.mig-2g.20gb", "A100 slice with 20 GB", "a100-sxm-80gb.8", Shared, 0, "2g.20gb", false, 450_000},
		{"a100-sxm.mig-1g.10gb", "A100 slice with 10 GB", "a100-sxm-80gb.8", Shared, 0, "1g.10gb", false, 240_000},
		{"rtx4090.4x", "4 × RTX 4090", "rtx4090-24gb.4", Shared, 4, "", false, 440_000},
		{"rtx4090.1x", "1 × RTX 4090", "rtx4090-24gb.4", Shared, 1, "", false, 480_000},
		{"mi250x.8x", "8 × MI250X 128 GB, whole node", "mi250x-128gb.8", BareMetal, 8, "", false, 1_190_000},
	}
	listings := make([]Listing, len(sales))
	for i, s := range sales {
		listings[i] = s.listing(pace, now)
	}
	return listings
}

func (s sale) listing(pace Pace, now time.Time) Listing {
	model, _ := ModelOf(s.hardware)
	t := InstanceType{
		ID: ids.Make[ids.Instance](), Name: s.name, Title: s.title, Hardware: s.hardware, Mode: s.mode, GPUs: s.gpus, MIGProfile: s.mig, WithHCA: s.hca,
		GPUModel: model.Title, RatedPer: PerInstance, Lead: pace.Lead, Turnaround: pace.Turnaround, Image: "ubuntu-24.04-cuda", Version: 1, CreatedAt: now,
	}
	if s.mig != "" {
		placement := model.MIG[s.mig]
		t.Width, t.BayStarts = placement.Slots, placement.Starts
		t.GPUMemoryBytes = model.MemoryBytes / lease.SlotsPerBay * int64(placement.Slots)
	} else {
		t.Width, t.Stride = s.gpus*lease.SlotsPerBay, s.gpus*lease.SlotsPerBay
		t.GPUMemoryBytes = model.MemoryBytes * int64(s.gpus)
	}
	if HardwareKey(model, s.gpus) == s.hardware { // whole nodes are rated by their GPUs
		t.RatedPer = PerGPU
	}
	const day = 24 * time.Hour
	return Listing{Type: t, Price: PriceVersion{
		InstanceType: t.ID, Rate: money.Rate{Micros: s.micros, Currency: money.USD}, MinDuration: pace.MinDuration, MaxDuration: 183 * day,
		Refunds: []lease.RefundStep{
			{NoticeSeconds: int64((7 * day).Seconds()), RefundBPS: 10_000},
			{NoticeSeconds: int64(day.Seconds()), RefundBPS: 9_000},
			{NoticeSeconds: 0, RefundBPS: 5_000},
		},
		EarlyRefundBPS: 5_000, CreatedAt: now,
	}}
}
