// SPDX-License-Identifier: Apache-2.0

package forecast_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/forecast"
)

func period(t *testing.T, from, to, zone string) forecast.Period {
	t.Helper()
	p := v1alpha1.WarmPeriod{From: from, To: to, TimeZone: zone}
	f, e, z, err := p.Times()
	if err != nil {
		t.Fatal(err)
	}
	return forecast.Period{From: f, To: e, Zone: z}
}

func TestAScheduleSaysWhenAPodIsWanted(t *testing.T) {
	const working, weekend = "0 8 * * MON-FRI", "0 18 * * *"
	for name, c := range map[string]struct {
		from, to, zone string
		now            string
		want           bool
		change         string
	}{
		"before work":  {working, "0 18 * * MON-FRI", "", "2026-11-23T07:59:59Z", false, "2026-11-23T08:00:00Z"},
		"work begins":  {working, "0 18 * * MON-FRI", "", "2026-11-23T08:00:00Z", true, "2026-11-23T18:00:00Z"},
		"work ends":    {working, "0 18 * * MON-FRI", "", "2026-11-23T18:00:00Z", false, "2026-11-24T08:00:00Z"},
		"on Sunday":    {working, weekend, "", "2026-11-22T12:00:00Z", false, "2026-11-23T08:00:00Z"},
		"in Paris":     {working, "0 18 * * MON-FRI", "Europe/Paris", "2026-11-23T07:00:00Z", true, "2026-11-23T17:00:00Z"},
		"over night":   {"0 22 * * *", "0 6 * * *", "", "2026-11-23T03:00:00Z", true, "2026-11-23T06:00:00Z"},
		"in leap days": {"0 0 29 2 *", "0 0 1 3 *", "", "2026-11-23T03:00:00Z", false, "2028-02-29T00:00:00Z"},
		"never ends":   {"0 0 1 1 *", "0 0 1 1 *", "", "2026-11-23T03:00:00Z", false, "2027-01-01T00:00:00Z"},
		// Clocks in Paris are put forward at 2:00 on 29 March 2026: 2:30 does not come, so the period lasts on.
		"spring": {"0 1 * * *", "30 2 * * *", "Europe/Paris", "2026-03-29T10:00:00Z", true, "2026-03-30T00:30:00Z"},
	} {
		t.Run(name, func(t *testing.T) {
			now, err := time.Parse(time.RFC3339, c.now)
			if err != nil {
				t.Fatal(err)
			}
			got, change := forecast.Wanted([]forecast.Period{period(t, c.from, c.to, c.zone)}, now)
			if got != c.want || change.UTC().Format(time.RFC3339) != c.change {
				t.Errorf("got %v until %v, want %v until %s", got, change.UTC(), c.want, c.change)
			}
		})
	}
}

// To look only when something changes is enough.
func TestNothingHappensBetweenTheChangesOfASchedule(t *testing.T) {
	periods := []forecast.Period{
		period(t, "0 8 * * MON-FRI", "30 17 * * MON-FRI", "America/New_York"),
		period(t, "*/20 3 * * *", "10,50 3 * * *", "Asia/Kathmandu"),
		period(t, "0 22 1 * *", "0 2 * * *", "Europe/Paris"),
	}
	r := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		now := time.Date(2026, 1, 1, 0, 0, r.IntN(366*24*3600), 0, time.UTC)
		wanted, change := forecast.Wanted(periods, now)
		if !change.After(now) {
			t.Fatalf("at %v it changes at %v", now, change)
		}
		between := now.Add(time.Duration(r.Int64N(int64(change.Sub(now)))))
		if got, _ := forecast.Wanted(periods, between); got != wanted {
			t.Fatalf("at %v wanted %v until %v, but at %v %v", now, wanted, change, between, got)
		}
	}
}

func TestWithoutAScheduleNothingIsWanted(t *testing.T) {
	if wanted, change := forecast.Wanted(nil, time.Now()); wanted || !change.IsZero() {
		t.Errorf("%v until %v", wanted, change)
	}
}
