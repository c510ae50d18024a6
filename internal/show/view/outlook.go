// SPDX-License-Identifier: Apache-2.0

package view

import (
	"time"

	"wangell.loutres.me/internal/decide/forecast"
	"wangell.loutres.me/internal/status"
)

// outlook describes what spec.sleep foresees.
func (w *why) outlook() {
	o := w.Outlook
	if o == nil {
		return
	}
	schedule := w.Service.Spec.Sleep != nil && len(w.Service.Spec.Sleep.Schedule) > 0
	at := o.Change.Local().Format("2006-01-02 15:04 MST")
	switch {
	case o.Wanted == status.WantedBySchedule:
		w.say("sleep.schedule keeps a pod until %s at least.", at)
	case o.Wanted == status.WantedByForecast && o.Basis == string(forecast.Unknown):
		w.say("Without another packet, it sleeps at %s.", at)
	case o.Wanted == status.WantedByForecast:
		w.say("It is likely to be used by %s, and keeps a pod until then.", at)
	case o.Change.IsZero():
	case schedule:
		w.say("A pod is started at %s, even if nobody asks for one.", at)
	default:
		w.say("It is likely to be used after %s: a pod is started then.", at)
	}
	from, to := seconds(o.Prewarm), seconds(o.Prewarm+o.Keep)
	switch forecast.Basis(o.Basis) {
	case forecast.Histogram:
		w.say("The forecast is made from its last %s, which are alike: the next use is expected %s to %s after the last one.",
			counted(o.IdleTimes, "pause"), short(from), short(to))
	case forecast.Series:
		w.say("The forecast is made from its last %s, most of which are long: the next use is expected %s to %s after the "+
			"last one.", counted(o.IdleTimes, "pause"), short(from), short(to))
	case forecast.Unknown:
		w.say("There is no forecast, as the pauses between its uses are too few or too different (%d known): idleTimeout "+
			"counts, %s.", o.IdleTimes, short(w.idle()))
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
