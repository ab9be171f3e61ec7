package focus

import (
	"reflect"
	"strings"
)

// Row is one row, its fields in the order of the columns: FOCUS's own, by name. Numbers are decimals in text, instants ISO 8601 in UTC, ""
// is null. Columns for commitment discounts and availability zones are left out, since Leasehold has neither.
type Row struct {
	BilledCost                         string `focus:"BilledCost"`
	BillingAccountID                   string `focus:"BillingAccountId"`
	BillingAccountName                 string `focus:"BillingAccountName"`
	BillingAccountType                 string `focus:"BillingAccountType"`
	BillingCurrency                    string `focus:"BillingCurrency"`
	BillingPeriodEnd                   string `focus:"BillingPeriodEnd"`
	BillingPeriodStart                 string `focus:"BillingPeriodStart"`
	CapacityReservationID              string `focus:"CapacityReservationId"`
	CapacityReservationStatus          string `focus:"CapacityReservationStatus"`
	ChargeCategory                     string `focus:"ChargeCategory"`
	ChargeClass                        string `focus:"ChargeClass"`
	ChargeDescription                  string `focus:"ChargeDescription"`
	ChargeFrequency                    string `focus:"ChargeFrequency"`
	ChargePeriodEnd                    string `focus:"ChargePeriodEnd"`
	ChargePeriodStart                  string `focus:"ChargePeriodStart"`
	ConsumedQuantity                   string `focus:"ConsumedQuantity"`
	ConsumedUnit                       string `focus:"ConsumedUnit"`
	ContractedCost                     string `focus:"ContractedCost"`
	ContractedUnitPrice                string `focus:"ContractedUnitPrice"`
	EffectiveCost                      string `focus:"EffectiveCost"`
	InvoiceID                          string `focus:"InvoiceId"`
	InvoiceIssuerName                  string `focus:"InvoiceIssuerName"`
	ListCost                           string `focus:"ListCost"`
	ListUnitPrice                      string `focus:"ListUnitPrice"`
	PricingCategory                    string `focus:"PricingCategory"`
	PricingCurrency                    string `focus:"PricingCurrency"`
	PricingCurrencyContractedUnitPrice string `focus:"PricingCurrencyContractedUnitPrice"`
	PricingCurrencyEffectiveCost       string `focus:"PricingCurrencyEffectiveCost"`
	PricingCurrencyListUnitPrice       string `focus:"PricingCurrencyListUnitPrice"`
	PricingQuantity                    string `focus:"PricingQuantity"`
	PricingUnit                        string `focus:"PricingUnit"`
	ProviderName                       string `focus:"ProviderName"`
	PublisherName                      string `focus:"PublisherName"`
	RegionID                           string `focus:"RegionId"`
	RegionName                         string `focus:"RegionName"`
	ResourceID                         string `focus:"ResourceId"`
	ResourceName                       string `focus:"ResourceName"`
	ResourceType                       string `focus:"ResourceType"`
	ServiceCategory                    string `focus:"ServiceCategory"`
	ServiceName                        string `focus:"ServiceName"`
	ServiceSubcategory                 string `focus:"ServiceSubcategory"`
	SkuID                              string `focus:"SkuId"`
	SkuMeter                           string `focus:"SkuMeter"`
	SkuPriceID                         string `focus:"SkuPriceId"`
	SubAccountID                       string `focus:"SubAccountId"`
	SubAccountName                     string `focus:"SubAccountName"`
	SubAccountType                     string `focus:"SubAccountType"`
	Tags                               string `focus:"Tags"`
}

func columnNames() []string {
	kind := reflect.TypeFor[Row]()
	names := make([]string, kind.NumField())
	for i := range names {
		names[i] = kind.Field(i).Tag.Get("focus")
	}
	return names
}

// plain keeps a spreadsheet from running a name that people chose as a formula.
func plain(name string) string {
	if name != "" && strings.ContainsAny(name[:1], "=+-@\t\r") {
		return "'" + name
	}
	return name
}

func (r Row) fields() []string {
	value := reflect.ValueOf(r)
	fields := make([]string, value.NumField())
	for i := range fields {
		fields[i] = value.Field(i).String()
	}
	return fields
}
